"""The recipes that a confirmation trained with fresh seeds, and the best of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from kbatch.records.store import PARTED, Record


def confirmed(records: Sequence[Record]) -> dict[tuple[int, str], list[Record]]:
    """Return the trainings of a confirmation by trial and recipe, the baseline's among them.

    One that is stopped may have a seed of a recipe, but not yet of the baseline: it is left out.
    """
    fresh = [record for record in records if record.purpose == "confirmation"]
    seeds = {record.seed for record in fresh if record.baseline}
    groups: dict[tuple[int, str], list[Record]] = {}
    for record in fresh:
        if record.seed in seeds:
            groups.setdefault((record.trial, str(record.recipe)), []).append(record)
    return groups


def best_first(groups: Sequence[list[Record]], dropped: Sequence[int] = ()) -> list[list[Record]]:
    """Return the trainings of recipes by their mean scores, those that left a race behind.

    Args:
        groups: Sequence of lists, the trainings of each recipe with fresh seeds.
        dropped: Sequence of integers, the trials whose recipes left a race.
    """
    return sorted(
        groups,
        key=lambda group: (
            group[0].trial in dropped,
            -statistics.fmean(record.score for record in group),
        ),
    )


def parted(records: Sequence[Record], best: Sequence[Record]) -> list[Record]:
    """Return the trainings of a confirmed recipe with the baseline's own hyperparameters.

    Args:
        records: Records of a search and its confirmation.
        best: The trainings of the recipe with fresh seeds.
    """
    key, seeds = (best[0].trial, best[0].recipe), {record.seed for record in best}
    own = [record for record in records if record.purpose == PARTED and record.seed in seeds]
    return [record for record in own if (record.trial, record.recipe) == key]


def confirmed_best(records: Sequence[Record], dropped: Sequence[int] = ()) -> list[Record]:
    """Return the trainings with fresh seeds of the best confirmed recipe; empty if there is none.

    Args:
        records: Records of a search, and of its confirmation if there is one.
        dropped: Sequence of integers, the trials whose recipes left a race.
    """
    groups = [group for group in confirmed(records).values() if not group[0].baseline]
    return next(iter(best_first(groups, dropped)), [])
