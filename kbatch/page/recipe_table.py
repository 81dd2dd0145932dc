"""The table of recipes in the page: cells as text, each with the value that it is sorted by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbatch.goal import Goal
from kbatch.records.store import Record
from kbatch.results.claim import Mean
from kbatch.results.ranking import Rank, headings, table
from kbatch.results.uncertainty import confirmed
from kbatch.results.words import SCORE, score_text

CONFIRMED = "score/s, fresh seeds"
REMARK = "remark"
TEXT = ("recipe", "own hyperparameters", "ended", REMARK)  # columns sorted as words
BASELINE, BEST = "baseline", "best"
Key = float | str


@dataclass(frozen=True)
class Cell:
    """One cell: its text, and the number or word that it is sorted by (`None` comes last)."""

    text: str
    key: Key | None


@dataclass(frozen=True)
class Row:
    """One recipe: its cells, and `"baseline"`, `"best"` or an empty string."""

    role: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class RecipeTable:
    """The table of recipes.

    Attributes:
        headings: Tuple of strings.
        rows: Tuple of `Row`, the baseline first, then by score.
    """

    headings: tuple[str, ...]
    rows: tuple[Row, ...]

    def is_text(self, heading: str) -> bool:
        """Tell whether a column is sorted as words."""
        return heading in TEXT


def recipe_table(
    ranks: Sequence[Rank], records: Sequence[Record], goal: Goal, best: Record | None
) -> RecipeTable:
    """Return the ranking as a table, with the scores of the confirmation if there is one.

    Args:
        ranks: The baseline, then the trials by score.
        records: All records, confirmations among them.
        goal: The goal of the search.
        best: Record of the best recipe, as `kbatch.best_recipe` gives it.
    """
    names = [name or REMARK for name in headings(ranks, goal.metric)]
    means = {
        (group[0].trial, str(group[0].recipe)): Mean.of([record.score for record in group])
        for group in confirmed(records).values()
    }
    rows = [
        _row(rank, dict(zip(names, texts, strict=True)), goal, means, best)
        for rank, texts in zip(ranks, table(ranks), strict=True)
    ]
    if means:
        names.insert(names.index(SCORE) + 1, CONFIRMED)
    return RecipeTable(tuple(names), tuple(rows))


def _row(
    rank: Rank,
    texts: Mapping[str, str],
    goal: Goal,
    means: Mapping[tuple[int, str], Mean],
    best: Record | None,
) -> Row:
    record, outcome = rank.record, rank.record.outcome
    numbers: dict[str, float | None] = {
        "trial": float(record.trial),
        SCORE: record.score,
        goal.metric: outcome.value,
        "examples/s": outcome.examples_per_second,
        "peak MB": outcome.peak_bytes,
    }
    cells = []
    for name, text in texts.items():
        key: Key | None = text if name in TEXT else _finite(numbers.get(name))
        cells.append(Cell(text, key))
        if name == SCORE and means:
            cells.append(_confirmed_cell(means.get((record.trial, str(record.recipe)))))
    role = BASELINE if record.baseline else BEST * (record is best)
    return Row(role, tuple(cells))


def _confirmed_cell(mean: Mean | None) -> Cell:
    if mean is None:
        return Cell("-", None)
    error = "" if math.isnan(mean.error) else f" ± {score_text(mean.error, mean.mean)}"
    text = f"{score_text(mean.mean)}{error} (n = {len(mean.values)})"
    return Cell(text, _finite(mean.mean))


def _finite(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else float(number)
