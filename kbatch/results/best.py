"""Best: the recipe that a search found, for what comes after it; asked by users."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from typing import Any

from kbatch.errors import RecordError
from kbatch.recipe import Recipe
from kbatch.records.record import Record
from kbatch.results.claim import confirmed
from kbatch.results.loading import load_records, root_of
from kbatch.results.ranking import leaders
from kbatch.results.words import score_text


def best_recipe(tuner_or_directory: Any) -> Recipe:
    """The best recipe of a search: of its confirmation if there is one, else of its trials.

    Use it to train what was found for longer, or on more data. After `kbatch.confirm` it is the
    recipe with the highest mean score over fresh seeds among those confirmed; before, that of the
    best-scored trial. It is never the baseline's, which you have already: where the baseline scored
    higher, a warning says so.

    Args:
        tuner_or_directory: The tuner after `search`, or the folder of the search.

    Returns:
        A `Recipe`. The values of all hyperparameters beside it, your own among them, are in
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
    best = best_of(records)
    if best is None:
        received = (
            f"{sum(record.purpose == 'search' for record in records)} trials that failed"
            if records
            else "no trial"
        )
        raise RecordError(
            f"{root_of(tuner_or_directory)} must hold a trial that did not fail",
            received,
            "Call tuner.search(…) first",
        )
    if best.score <= 0:
        warnings.warn(
            "No trial held more than chance: this recipe is one of many that score 0. Give trials more seconds.",
            stacklevel=2,
        )
    own = _mean(records, _twins(records, best))
    baseline = _mean(records, [record for record in records if record.baseline])
    if baseline > own:
        text = f"The baseline did better: {score_text(baseline)} against {score_text(own)} per second. Keep it, or search on."
        warnings.warn(text, stacklevel=2)
    return best.recipe


def best_of(records: Sequence[Record]) -> Record | None:
    """The trial of the best recipe, or `None` if no trial ended well.

    Args:
        records: Records of a search, and of its confirmation if there is one.
    """
    candidates = [group for group in confirmed(records).values() if not group[0].baseline]
    if not candidates:
        return next(iter(leaders(records, 1)), None)
    best = max(candidates, key=lambda group: statistics.fmean(record.score for record in group))
    own = [record for record in _twins(records, best[0]) if record.purpose == "search"]
    return (own or best)[0]  # the search's: among its own seeds the luckiest would flatter it


def _twins(records: Sequence[Record], best: Record) -> list[Record]:
    return [
        record for record in records if (record.trial, record.recipe) == (best.trial, best.recipe)
    ]


def _mean(records: Sequence[Record], own: Sequence[Record]) -> float:
    """The mean score over a recipe's fresh seeds where there was a confirmation, else the search's own."""
    purposes = {"confirmation"} if confirmed(records) else {"search", "baseline"}
    return statistics.fmean([record.score for record in own if record.purpose in purposes] or [0.0])
