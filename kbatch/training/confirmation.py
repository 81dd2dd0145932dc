"""Confirmation: the leaders trained again with fresh seeds, until one is better for sure."""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import tensorflow as tf

from kbatch.data.validation import held_out_batches
from kbatch.errors import SearchError, in_one_frame
from kbatch.recipe_words import whole_number
from kbatch.records.project import Project
from kbatch.records.store import Record
from kbatch.results.claim import Race, claim_of, confirmed_best
from kbatch.results.interval import FEWEST_SEEDS
from kbatch.results.loading import load_validation_examples, rows
from kbatch.results.ranking import leaders, unranked
from kbatch.results.words import Ahead, apart, race_trainings
from kbatch.runtime import device
from kbatch.search import tuner_border
from kbatch.training import tensorboard
from kbatch.training import terms as training_terms
from kbatch.training import workers as training_workers
from kbatch.training.arguments import seconds_of
from kbatch.training.progress import Forecast
from kbatch.training.search import Search

DECIDED = ("better", "worse")  # verdicts of a claim after which no seed is needed


def looks_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of seeds after which the recipes are compared."""
    given = tuple(seeds) if isinstance(seeds, (list, tuple, range)) else (seeds,)
    looks = tuple(whole_number(look) or 0 for look in given)
    if not looks or looks[0] < 1 or list(looks) != sorted(set(looks)):
        raise SearchError(
            "`seeds` must be a whole number of at least 1, or rising ones",
            seeds,
            "Pass 3 or (3, 5, 8, 12), say",
        )
    return looks


def run_race(
    search: Search,
    candidates: Sequence[Record],
    looks: Sequence[int],
    ends_at: float,
    test: tf.data.Dataset | None,
) -> list[Record]:
    """Train the baseline and the candidates with fresh seeds, and return the records.

    Where a gain may be claimed, and the best recipe and the baseline have other hyperparameters of
    the user's own, that recipe is trained with the baseline's too. These trainings are kept, and
    not returned.
    """
    made = _raced(search, candidates, looks, ends_at, test)
    _part(search, candidates, ends_at, test)
    return made


def _raced(
    search: Search,
    candidates: Sequence[Record],
    looks: Sequence[int],
    ends_at: float,
    test: tf.data.Dataset | None,
) -> list[Record]:
    """Train the baseline and the candidates with fresh seeds, as far as the race goes."""
    left, made = list(candidates), list[Record]()
    first = search.model_maker.seed + 1
    _forecast(search, looks, len(left), ends_at)
    _note(search, looks, returned=left)
    try:
        for begun, look in zip((0, *looks), looks, strict=False):
            racers = [search.baseline(), *left]
            # Seed by seed: if the machine's speed changes, it changes for all recipes alike.
            seeds = range(first + begun, first + look)
            asked = [
                functools.partial(search.again, record, seed, test)
                for seed in seeds
                for record in racers
            ]
            if not _train(search, asked, ends_at, made) or _is_decided(search, left):
                return made
            racing, left = left, better_half(left, made)
            if look != looks[-1]:
                _note(search, looks, dropped=[each for each in racing if each not in left])
    finally:
        # Whoever stops a race, by a budget or Ctrl-C, looks at it there.
        _note(search, {sum(again.baseline for again in made)} - {0})
    return made


def _forecast(search: Search, looks: Sequence[int], candidates: int, ends_at: float) -> None:
    """Tell the watcher how long the race takes, if it goes on to the last look."""
    records, workers = search.project.store.records(), getattr(search.trainer, "workers", 1)
    made = sum(record.purpose == "confirmation" for record in records)
    trainings = max(sum(race_trainings(looks, candidates)) - made, 0)
    ahead = Ahead(search.goal.seconds, whole=trainings, workers=workers)
    race = "at most " if len(looks) > 1 else ""
    words = f"{race}{trainings} trainings of {search.goal.seconds:.3g} training seconds to confirm"
    search.watcher.begins(Forecast(ahead, records, ends_at - time.monotonic()), words)


def _part(
    search: Search, candidates: Sequence[Record], ends_at: float, test: tf.data.Dataset | None
) -> None:
    """Train the best recipe with the baseline's own hyperparameters, where both changed."""
    race, records = Race.of(search.project.facts()), search.project.store.records()
    best = confirmed_best(records, race.dropped)
    first = next((each for each in candidates if best and each.trial == best[0].trial), None)
    seeds = sorted({record.seed for record in best})
    if first is None or len(seeds) < FEWEST_SEEDS:  # there is no gain to part
        return
    baseline = next(each for each in records if each.baseline)
    if first.recipe == baseline.recipe or apart(first, baseline) == ({}, {}):
        return
    asked = [functools.partial(search.parted, first, baseline, seed, test) for seed in seeds]
    _train(search, asked, ends_at, [])


def _train(
    search: Search,
    asked: Sequence[Callable[[], Record]],
    ends_at: float,
    made: list[Record],
) -> bool:
    """Make trainings in all workers, add the records, and tell whether time sufficed."""
    ended: dict[int, Record] = {}
    places = iter(range(len(asked)))

    def work(worker: int) -> None:
        while time.monotonic() <= ends_at:
            place = next(places, None)
            if place is None:
                return
            ended[place] = asked[place]()

    try:
        with training_workers.beside(search.trainer, work):
            work(0)
    finally:
        made += [ended[place] for place in sorted(ended)]
    return len(ended) == len(asked)


def _note(
    search: Search,
    looks: Iterable[int],
    returned: Sequence[Record] = (),
    dropped: Sequence[Record] = (),
) -> None:
    """Keep where recipes can be compared, and which of them race."""
    race = Race.of(search.project.facts())
    out = {*race.dropped, *(each.trial for each in dropped)} - {each.trial for each in returned}
    search.project.note({"looks": sorted({*race.looks, *looks}), "dropped": sorted(out)})


def better_half(candidates: Sequence[Record], made: Sequence[Record]) -> list[Record]:
    """Return the candidates with the higher mean scores, rounded up, in their order.

    Of equal ones the first go on.
    """
    means = [
        statistics.fmean(
            again.score
            for again in made
            if (again.trial, again.recipe) == (candidate.trial, candidate.recipe)
        )
        for candidate in candidates
    ]
    places = sorted(range(len(means)), key=lambda place: -means[place])
    kept = sorted(places[: math.ceil(len(means) / 2)])
    return [candidates[place] for place in kept]


def _is_decided(search: Search, left: Sequence[Record]) -> bool:
    """Whether the best of the recipes that race is told from the baseline."""
    records, folder = search.project.store.records(), search.project.directory
    racing = {each.trial for each in left}
    others = {record.trial for record in records if not record.baseline} - racing
    race = replace(Race.of(search.project.facts()), dropped=tuple(others))
    claim = claim_of(records, search.goal, load_validation_examples(folder), race)
    return claim is not None and claim.verdict in DECIDED


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
    looks = looks_of(seeds)
    if (whole_number(top) or 0) < 1:
        raise SearchError("`top` must be a whole number of at least 1", top, "Pass 3, say")
    ends_at = time.monotonic() + (math.inf if budget is None else seconds_of(budget))
    hypermodel, terms = training_terms.searched_by(tuner, "A confirmation")
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
    arguments = training_terms.completed_arguments(hypermodel.remembered, project, passed)
    training_terms.check_complete(project, arguments, "kbatch.confirm")
    device.check_outside_strategy()
    with project.hold(), tuner_border.scope(tuner):
        search = hypermodel.prepared.matching(project, (), arguments, hypermodel.watcher)
        if search is None:
            search = terms.open(project, (), arguments, hypermodel.watcher)
        search = tensorboard.shown_search(search, tuner_border.declared(tuner))
        test = None
        if test_data is not None:
            spec = search.data.training.element_spec
            test, facts = held_out_batches(test_data, element_spec=spec)
            project.agree({"test_data": facts})
        with contextlib.closing(search.trainer):
            confirmations = run_race(search, chosen, looks, ends_at, test)
    return rows(confirmations, search.goal.metric)
