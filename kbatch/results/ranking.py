"""Ranking: recipes by score, with the standard error of each value and those that noise cannot tell from the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kbatch import scoring
from kbatch.records.record import Record

HEADINGS = ("trial", "recipe", "score x 1000", "{metric}", "examples/s", "peak MB", "ended", "")


@dataclass(frozen=True)
class Rank:
    """One row of the ranking.

    Attributes:
        record: The trial.
        standard_error: Float, of the value as a share of so many validation examples; `None` if it is no share.
        within_noise: Boolean, whether its value is within two standard errors (of the difference) of the best-scored.
        best: Boolean, whether it has the highest score of the search.
    """

    record: Record
    standard_error: float | None
    within_noise: bool
    best: bool


def ranking(records: Sequence[Record], metric: str, validation_examples: int) -> list[Rank]:
    """Trials and baseline, highest score first.

    Args:
        records: Records of a search.
        metric: Name of the metric.
        validation_examples: Integer, how many examples it was measured on.
    """
    rows = sorted((record for record in records if record.purpose != "confirmation"), key=lambda record: -record.score)
    best = next((record for record in rows if record.purpose == "search" and record.score > 0), None)

    def error(record: Record) -> float | None:
        value = record.outcome.value
        share = "accuracy" in metric and value is not None and 0 <= value <= 1
        return scoring.standard_error(value, validation_examples) if share and value is not None else None

    def near(record: Record) -> bool:
        if best is None or record.score <= 0 or error(record) is None or error(best) is None:
            return False
        apart = abs((best.outcome.value or 0.0) - (record.outcome.value or 0.0))
        return apart <= 2 * math.hypot(error(record) or 0.0, error(best) or 0.0)

    return [Rank(record, error(record), near(record) and record is not best, record is best) for record in rows]


def headings(metric: str) -> list[str]:
    """Headings of the table, metric filled in."""
    return [heading.format(metric=metric) for heading in HEADINGS]


def cells(rank: Rank) -> list[str]:
    """One row of the table as text."""
    record, outcome = rank.record, rank.record.outcome
    value = "-" if outcome.value is None else f"{outcome.value:.3f}" + (f" ± {rank.standard_error:.3f}" if rank.standard_error is not None else "")
    verdict = "best" if rank.best else ("within noise of the best" if rank.within_noise else "")
    if len(outcome.curve) < scoring.WINDOW and outcome.ended == "horizon":
        verdict = "too slow for this horizon"
    return [
        "baseline" if record.baseline else str(record.trial),
        str(record.recipe),
        f"{1000 * record.score:.1f}",
        value,
        f"{outcome.examples_per_second:,.0f}",
        "-" if outcome.peak_bytes is None else f"{outcome.peak_bytes / 1e6:,.0f}",
        outcome.ended,
        verdict,
    ]
