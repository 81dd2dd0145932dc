"""The ranking: trials by score, and which of them noise cannot tell from the best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kbatch import scoring
from kbatch.goal import Goal
from kbatch.outcome import SCORED, STOPPED
from kbatch.records.store import Record
from kbatch.results.confirmed_recipes import confirmed_best
from kbatch.results.noise import score_error, value_error
from kbatch.results.own_values import own_words
from kbatch.results.words import SCORE, ended_text, score_text

BEST, BEST_OF_SEARCH, BELOW_BASELINE, NEAR = (
    "best",
    "best of the search",
    "best of the search; the baseline did better",
    "within noise of the best",
)
NOT_RANKED, TOO_SLOW = "one seed, not ranked", "too slow for this horizon"


@dataclass(frozen=True)
class Rank:
    """One row of the ranking.

    Attributes:
        record: The training.
        standard_error: Float, of a value that is a share of the validation examples; `None` for
            any other value.
        verdict: A remark such as `"best"` or `"within noise of the best"`; may be empty.
    """

    record: Record
    standard_error: float | None
    verdict: str


def trainings_of(records: Sequence[Record], first: Record) -> list[Record]:
    """Return the trainings that a search made of a recipe, one more if it led for a while.

    Args:
        records: Records of a search.
        first: Record of a training of the recipe.
    """
    trials = [record for record in records if record.purpose == "search"]
    return [record for record in trials if record.first_trial == first.first_trial]


def mean_score(records: Sequence[Record], first: Record) -> float:
    """Return the mean score of the trainings that a search made of a recipe.

    Args:
        records: Records of a search.
        first: Record of a training of the recipe.
    """
    return statistics.fmean(record.score for record in trainings_of(records, first))


def leaders(records: Sequence[Record], top: int) -> list[Record]:
    """Return the first trainings of the best-scored recipes of a search, best first.

    A recipe that was trained several times has the mean of its scores. Trials that failed are left
    out: they would fail again.
    """
    first = {
        record.key: record
        for record in reversed(records)
        if record.purpose == "search" and record.repeats is None and record.outcome.ended in SCORED
    }
    in_order = [record for record in records if first.get(record.key) is record]
    return sorted(in_order, key=lambda record: -mean_score(records, record))[:top]


def all_were_stopped(records: Sequence[Record]) -> bool:
    """Tell whether rungs stopped trials of a search, and none has a score.

    Args:
        records: Records of a search.
    """
    stopped = any(record.outcome.ended == STOPPED for record in records)
    return stopped and not leaders(records, 1)


def unranked(records: Sequence[Record]) -> tuple[str, str]:
    """Say how the trials of a search ended that has no leader, and what to do.

    Args:
        records: Records of a search.
    """
    trials = [record for record in records if record.purpose == "search"]
    stopped = sum(record.outcome.ended == STOPPED for record in trials)
    words = {"were stopped at a rung": stopped, "failed": len(trials) - stopped}
    parts = [f"{count} that {ended}" for ended, count in words.items() if count]
    if not parts:
        return "no trial", "Call tuner.search(…) first"
    return f"of {len(trials)} trials {' and '.join(parts)}", "Keep the baseline, or search on"


def ranking(
    records: Sequence[Record], goal: Goal, examples: int, dropped: Sequence[int] = ()
) -> list[Rank]:
    """Return the baseline, then the trials, highest score first.

    The baseline has no rank. It is one draw that nobody chose, and the highest of many trials is
    not.

    Args:
        records: Records of a search.
        goal: The goal of the search.
        examples: Integer, how many validation examples the metric was measured on.
        dropped: Sequence of integers, the trials whose recipes left a race.
    """
    baselines = [record for record in records if record.purpose == "baseline"]
    trials = [record for record in records if record.purpose == "search"]
    trials.sort(key=lambda record: -record.score)
    best = next((record for record in leaders(records, 1) if record.score > 0), None)
    mean = 0.0 if best is None else mean_score(records, best)

    def rank(record: Record, verdict: str) -> Rank:
        error = value_error(record.outcome.value, goal.metric, examples)
        return Rank(record, error, verdict)

    def verdict(record: Record) -> str:
        if record is best:
            return _best(records, record, baselines, dropped)
        if record.repeats is not None:
            return f"trial {record.repeats} again"
        if len(record.outcome.curve) < scoring.WINDOW and record.outcome.ended == "horizon":
            return TOO_SLOW
        near = best is not None and _within_noise(record, best, mean, goal, examples)
        return NEAR if near else ""

    ranks = [rank(record, NOT_RANKED) for record in baselines]
    return ranks + [rank(record, verdict(record)) for record in trials]


def _best(
    records: Sequence[Record],
    best: Record,
    baselines: Sequence[Record],
    dropped: Sequence[int],
) -> str:
    """The remark on the best recipe, which says if its score is a mean."""
    trainings, mean = len(trainings_of(records, best)), mean_score(records, best)
    beaten = any(baseline.score > mean for baseline in baselines)
    verdict = BELOW_BASELINE if beaten else BEST
    if not beaten and any(each.trial != best.trial for each in confirmed_best(records, dropped)):
        verdict = BEST_OF_SEARCH  # with fresh seeds another one is
    if trainings == 1:
        return verdict
    return f"{verdict} ({score_text(mean)}, mean of {trainings} trainings)"


def _within_noise(record: Record, best: Record, mean: float, goal: Goal, examples: int) -> bool:
    """Whether a score is within two standard errors of the best recipe's mean score."""
    if record.outcome.ended not in SCORED:
        return False
    errors = []
    for each in (record, best):
        error = score_error(each.outcome, goal, examples)
        if error is None:
            return False
        errors.append(error)
    return mean - record.score <= 2 * math.hypot(*errors)


def headings(ranks: Sequence[Rank], metric: str) -> list[str]:
    """Return the table's headings, with a column for the user's own hyperparameters if any."""
    own = ["own hyperparameters"] if _have_own_values(ranks) else []
    return ["trial", "recipe", *own, SCORE, metric, "examples/s", "peak MB", "ended", ""]


def table(ranks: Sequence[Rank]) -> list[list[str]]:
    """Return all rows of the table as text."""
    highest = max((rank.record.score for rank in ranks), default=0.0)
    own = _have_own_values(ranks)
    return [_cells(rank, highest, own) for rank in ranks]


def _have_own_values(ranks: Sequence[Rank]) -> bool:
    return any(own_words(rank.record) for rank in ranks)


def _cells(rank: Rank, highest: float, own: bool) -> list[str]:
    record, outcome = rank.record, rank.record.outcome
    value = "-" if outcome.value is None else f"{outcome.value:.3f}"
    if rank.standard_error is not None:
        value += f" ± {rank.standard_error:.3f}"
    at_least = "≥ " if outcome.ended == STOPPED else ""
    return [
        "baseline" if record.baseline else str(record.trial),
        str(record.recipe),
        *([own_words(record) or "defaults"] if own else []),
        at_least + score_text(record.score, highest),
        value,
        f"{outcome.examples_per_second:,.0f}",
        "-" if outcome.peak_bytes is None else f"{outcome.peak_bytes / 1e6:,.0f}",
        ended_text(outcome),
        rank.verdict,
    ]
