"""The confirmation of a search: its leading recipes trained again with fresh seeds."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Any

import pandas as pd

from kbatch import tuner as keras_tuners
from kbatch.data.validation import held_out_batches
from kbatch.errors import SearchError, in_one_frame
from kbatch.recipe_fields import whole_number
from kbatch.records.project import Project
from kbatch.results.loading import rows
from kbatch.results.ranking import leaders, unranked
from kbatch.runtime import gpus
from kbatch.training import board, race, remembered
from kbatch.training.budget import seconds_of


@in_one_frame
def confirm(
    tuner: Any,
    x: Any = None,
    y: Any = None,
    validation_data: Any = None,
    top: int = 3,
    seeds: int | Sequence[int] = 3,
    *,
    budget: str | float | None = None,
    test_data: Any = None,
    **fit_arguments: Any,
) -> pd.DataFrame:
    """Train the leading recipes of a search and the baseline again with fresh seeds.

    Use it before you claim anything: the highest of many noisy scores flatters its recipe. The
    trainings are kept with the search's records: a confirmation that was stopped goes on where it
    was. The workers of an executor train several recipes at once. After `tuner.search`, data and
    callbacks need not be passed again; a new process must pass them, and is told which.

    Args:
        tuner: The tuner after `search`, made with a `kbatch.HyperModel`.
        x: As for `search`. Defaults to the data of the search.
        y: As for `search`.
        validation_data: As for `search`.
        top: Integer, how many of the best-scored recipes. Defaults to `3`.
        seeds: Integer, fresh seeds per recipe. Fewer than three claim nothing; five find most
            gains that are worth having. Several, such as `(3, 5, 8, 12)`, make a race: after so
            many seeds the recipes are compared, the better half goes on, and the race ends once the
            best is told from the baseline. Its interval allows for all of these looks. Defaults to
            `3`.
        budget: String such as `"30min"`, or a float of seconds, after which no training is begun.
            Optional.
        test_data: Data like `validation_data` that the kept weights are evaluated on too. Optional.
        **fit_arguments: The other arguments of `search`, such as `callbacks` or `class_weight`.

    Returns:
        A `pandas.DataFrame` with one row per training: the columns of `kbatch.results.load`,
        `seed`, and `test_…` for each metric if there are test data. The baseline's rows have
        `baseline=True`.

    Raises:
        SearchError: If the tuner has no finished search, is not one of kbatch's, or if a new
            process lacks something that the search was given.
        RecordError: If another process is training in the project, or its records are gone.
        ProjectChangedError: If something differs from what the search was given, or if an earlier
            confirmation had other test data.

    Example:
    ```python
    runs = kbatch.confirm(tuner, top=2, seeds=5)
    print(kbatch.report(tuner))  # what may be claimed
    ```
    """
    looks = race.looks_of(seeds)
    if (whole_number(top) or 0) < 1:
        raise SearchError("`top` must be a whole number of at least 1", top, "Pass 3, say")
    ends_at = time.monotonic() + (math.inf if budget is None else seconds_of(budget))
    hypermodel, terms = remembered.searched_by(tuner, "A confirmation")
    project = Project(tuner.project_dir)
    project.check_complete()
    records = project.store.records()
    chosen = leaders(records, top)
    if not chosen:
        raise SearchError(
            "A search must have a trial that did not fail or stop at a rung to be confirmed",
            *unranked(records),
        )
    if terms.seconds_per_trial is None:
        fit_arguments.setdefault("epochs", project.facts().get("epochs"))
    passed = {"x": x, "y": y, "validation_data": validation_data, **fit_arguments}
    arguments = remembered.completed(hypermodel.remembered, project, passed)
    remembered.check_complete(project, arguments, "kbatch.confirm")
    gpus.check_outside_strategy()
    with project.hold(), keras_tuners.scope(tuner):
        search = hypermodel.prepared.matching(project, (), arguments, hypermodel.watcher)
        if search is None:
            search = terms.open(project, (), arguments, hypermodel.watcher)
        search = board.shown(search, keras_tuners.declared(tuner))
        test = None
        if test_data is not None:
            spec = search.data.training.element_spec
            test, facts = held_out_batches(test_data, element_spec=spec)
            project.agree({"test_data": facts})
        with contextlib.closing(search.trainer):
            confirmations = race.run(search, chosen, looks, ends_at, test)
    return rows(confirmations, search.goal.metric)
