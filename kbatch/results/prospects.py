"""Prospects: what more search may bring, beside what a confirmation could tell of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kbatch.outcome import SCORED, Goal
from kbatch.records.store import Record
from kbatch.results.interval import interval, measuring_error
from kbatch.results.ranking import leaders, mean_score, trainings_of

MORE = 10  # horizons ahead
# What that many more horizons brought in searches over recorded tables, by the horizons before
# (scripts/bench_prospects.py): the mean rise of the recommended recipe's mean score, and the share
# of searches in which it rose. Neither depends on what a search has seen, as far as was found.
GAIN, GAIN_FROM = 0.80, 17.6
CHANCE, CHANCE_FROM = 7.7, 7.2
SEEDS = 5  # of a confirmation that finds most gains that are worth having
# scores of five seeds with the mean 0 and the standard deviation 1
EVEN = (np.arange(SEEDS) - 2) * math.sqrt(0.4)


@dataclass(frozen=True)
class Prospects:
    """What ten more horizons of a search may bring.

    Attributes:
        horizons: Float, training seconds of the search so far, in horizons.
        told_apart: Float, the least difference that a confirmation with five seeds tells from
            chance, as a share of the best score; `None` while no recipe was trained again.
    """

    horizons: float
    told_apart: float | None

    @property
    def gain(self) -> float:
        """Float, by how much of itself the best score rises, on average."""
        return GAIN / (self.horizons + GAIN_FROM)

    @property
    def chance(self) -> float:
        """Float, the chance that a better recipe leads then."""
        return min(CHANCE / (self.horizons + CHANCE_FROM), 1.0)

    @property
    def is_worth_it(self) -> bool:
        """Whether a confirmation could tell what the search gains, as far as is known."""
        return self.told_apart is None or self.gain >= self.told_apart

    def words(self, seconds: float) -> str:
        """Return a sentence, for trials of so many training seconds."""
        told = (
            f"Another {MORE} horizons of search ({MORE * seconds:,.3g} training seconds) raise the "
            f"best score by {self.gain:.1%} on average, with a chance of {self.chance:.0%}: so it "
            f"was in recorded searches after {self.horizons:.0f} horizons"
        )
        if self.told_apart is None:
            return f"{told}."
        return f"{told}. A confirmation with {SEEDS} seeds tells {self.told_apart:.1%} apart."


def prospects_of(records: Sequence[Record], goal: Goal, examples: int) -> Prospects | None:
    """Return the prospects of a search by `kbatch.Tuner`; `None` before a trial holds a score.

    Also with a target, since what was recorded has none.
    """
    made = [each for each in records if each.purpose in ("search", "baseline")]
    best = next((each for each in leaders(records, 1) if each.score > 0), None)
    if best is None or goal.target is not None:
        return None
    score, spread = mean_score(records, best), _spread(made)
    spent = sum(each.outcome.train_seconds for each in made) / goal.seconds
    if spread is None:
        return Prospects(spent, None)
    measured = measuring_error(trainings_of(records, best), goal, examples)
    return Prospects(spent, told_apart(score, spread, measured))


def told_apart(score: float, spread: float, measured: float) -> float:
    """Return the least difference that a confirmation tells from chance, as a share of a score.

    Args:
        score: Float, a mean score.
        spread: Float, the standard deviation of scores between seeds.
        measured: Float, the standard error of measuring one score.
    """
    seeds = score + spread * EVEN
    return float(interval(seeds, seeds, measured, measured, 1)) / score


def _spread(records: Sequence[Record]) -> float | None:
    """The standard deviation of a recipe's score between seeds; `None` if none has two.

    It is rather too large: what is trained again is what led, which was lucky the first time.
    """
    scores: dict[int, list[float]] = {}
    for record in records:
        if record.purpose == "search" and record.outcome.ended in SCORED:
            scores.setdefault(record.first_trial, []).append(record.score)
    variances = [statistics.variance(each) for each in scores.values() if len(each) > 1]
    return math.sqrt(statistics.fmean(variances)) if variances else None
