"""Ranking: trials by score, with the standard error of each value and those that noise cannot tell from the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbatch import scoring
from kbatch.outcome import SCORED
from kbatch.records.record import Record
from kbatch.results import noise
from kbatch.results.own_values import own_words
from kbatch.results.words import SCORE, ended_text, score_text

BEST, BELOW_BASELINE, NEAR = (
    "best",
    "best of the search; the baseline did better",
    "within noise of the best",
)
NOT_RANKED, TOO_SLOW = "one seed, not ranked", "too slow for this horizon"


@dataclass(frozen=True)
class Rank:
    """One row of the ranking.

    Attributes:
        record: The training.
        standard_error: Float, of the value as a share of so many validation examples; `None` if it
            is no share.
        verdict: What is to be said of it, such as `"best"` or `"within noise of the best"`; empty
            if there is nothing.
    """

    record: Record
    standard_error: float | None
    verdict: str

    @property
    def best(self) -> bool:
        """Whether it has the highest score of the search."""
        return self.verdict in (BEST, BELOW_BASELINE)


def leaders(records: Sequence[Record], top: int) -> list[Record]:
    """The best-scored trials of a search, each recipe once, best first; none that failed, which would fail again."""
    ended_well = (
        record
        for record in records
        if record.purpose == "search" and record.outcome.ended in SCORED
    )
    trials = sorted(ended_well, key=lambda record: -record.score)
    different = {record.key: record for record in reversed(trials)}
    return [record for record in trials if different[record.key] is record][:top]


def ranking(records: Sequence[Record], goal: dict[str, Any], examples: int) -> list[Rank]:
    """The baseline, then the trials, highest score first.

    The baseline is one draw that nobody chose, the highest of many trials is not: so it stands
    apart and has no rank.

    Args:
        records: Records of a search.
        goal: The goal of the search.
        examples: Integer, how many validation examples the metric was measured on.
    """
    baselines = [record for record in records if record.purpose == "baseline"]
    trials = sorted(
        (record for record in records if record.purpose == "search"),
        key=lambda record: -record.score,
    )
    best = next((record for record in trials if record.score > 0), None)

    def verdict(record: Record) -> str:
        if record is best:
            return (
                BELOW_BASELINE
                if any(baseline.score > record.score for baseline in baselines)
                else BEST
            )
        if len(record.outcome.curve) < scoring.WINDOW and record.outcome.ended == "horizon":
            return TOO_SLOW
        return NEAR if best is not None and _near(record, best, goal, examples) else ""

    def rank(record: Record, said: str) -> Rank:
        return Rank(record, noise.value_error(record.outcome.value, goal["metric"], examples), said)

    return [
        *(rank(record, NOT_RANKED) for record in baselines),
        *(rank(record, verdict(record)) for record in trials),
    ]


def _near(record: Record, best: Record, goal: dict[str, Any], examples: int) -> bool:
    """Whether two scores are within two standard errors of their difference."""
    if record.outcome.ended not in SCORED:
        return False
    errors = [noise.score_error(each.outcome, goal, examples) for each in (record, best)]
    if None in errors:
        return False
    return best.score - record.score <= 2 * math.hypot(*(error or 0.0 for error in errors))


def headings(ranks: Sequence[Rank], metric: str) -> list[str]:
    """Headings of the table; the user's own hyperparameters have a column if there are any."""
    own = ["own hyperparameters"] if _own(ranks) else []
    return ["trial", "recipe", *own, SCORE, metric, "examples/s", "peak MB", "ended", ""]


def table(ranks: Sequence[Rank]) -> list[list[str]]:
    """All rows of the table as text."""
    highest = max((rank.record.score for rank in ranks), default=0.0)
    return [_cells(rank, highest, _own(ranks)) for rank in ranks]


def _own(ranks: Sequence[Rank]) -> bool:
    return any(own_words(rank.record) for rank in ranks)


def _cells(rank: Rank, highest: float, own: bool) -> list[str]:
    record, outcome = rank.record, rank.record.outcome
    value = "-" if outcome.value is None else f"{outcome.value:.3f}"
    if rank.standard_error is not None:
        value += f" ± {rank.standard_error:.3f}"
    return [
        "baseline" if record.baseline else str(record.trial),
        str(record.recipe),
        *([own_words(record) or "defaults"] if own else []),
        score_text(record.score, highest),
        value,
        f"{outcome.examples_per_second:,.0f}",
        "-" if outcome.peak_bytes is None else f"{outcome.peak_bytes / 1e6:,.0f}",
        ended_text(outcome),
        rank.verdict,
    ]
