"""The best recipe of a search."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from kbatch.errors import RecordError, in_one_frame
from kbatch.recipe import Recipe
from kbatch.records.store import Record
from kbatch.results.confirmed_recipes import confirmed, confirmed_best
from kbatch.results.loading import load_race, load_records, root_of
from kbatch.results.ranking import leaders, trainings_of, unranked
from kbatch.results.words import score_text
from kbatch.runtime import users_code


@in_one_frame
def best_recipe(tuner_or_directory: Any) -> Recipe:
    """Return the best recipe of a search: of its confirmation if there is one, else of its trials.

    Use it to train the recipe for longer, or on more data. After `kbatch.confirm` it is the
    confirmed recipe with the highest mean score over fresh seeds. Before, it is the one with the
    highest mean score of the search. It is never the baseline's, which you have already. If the
    baseline scored higher, a warning says so.

    Args:
        tuner_or_directory: The tuner after `search`, or the folder of the search.

    Returns:
        A `Recipe`. The trial's hyperparameters, your own among them, are in
        `kbatch.report(tuner_or_directory).best.values`.

    Raises:
        RecordError: If there are no records, or no trial has ended well.

    Example:
    ```python
    recipe = kbatch.best_recipe(tuner)
    values = kbatch.report(tuner).best.values
    model, outcome = kbatch.train(recipe, build, x, y, (x_val, y_val), epochs=50, values=values)
    ```
    """
    records = load_records(tuner_or_directory)
    best = best_of(records, load_race(tuner_or_directory).dropped)
    if best is None:
        raise RecordError(
            f"{root_of(tuner_or_directory)} must hold a trial that did not fail or stop at a rung",
            *unranked(records),
        )
    if best.score <= 0:
        users_code.warn(
            "No trial held more than chance: this recipe is one of many that score 0. "
            "Give trials more seconds."
        )
    own = _mean_score(records, _same_recipe(records, best))
    baseline = _mean_score(records, [record for record in records if record.baseline])
    if baseline > own:
        scores = f"{score_text(baseline)} against {score_text(own)} per second"
        users_code.warn(f"The baseline did better: {scores}. Keep it, or search on.")
    return best.recipe


def best_of(records: Sequence[Record], dropped: Sequence[int] = ()) -> Record | None:
    """Return the trial of the best recipe, or `None` if no trial ended well.

    Args:
        records: Records of a search, and of its confirmation if there is one.
        dropped: Sequence of integers, the trials whose recipes dropped out of a race.
    """
    best = confirmed_best(records, dropped)
    if not best:
        return next(iter(leaders(records, 1)), None)
    own = trainings_of(records, best[0])
    # The search's own training, if there is one: the luckiest of the fresh seeds would flatter it.
    return (own or best)[0]


def _same_recipe(records: Sequence[Record], best: Record) -> list[Record]:
    """All trainings of a trial's recipe."""
    return [record for record in records if record.first_trial == best.trial]


def _mean_score(records: Sequence[Record], own: Sequence[Record]) -> float:
    """The mean score over a recipe's fresh seeds if there was a confirmation, else of the search.

    Args:
        records: All records.
        own: Those of the recipe.
    """
    purposes = {"confirmation"} if confirmed(records) else {"search", "baseline"}
    return statistics.fmean([record.score for record in own if record.purpose in purposes] or [0.0])
