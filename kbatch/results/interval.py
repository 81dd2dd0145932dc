"""Interval: how far a score may be off, and the difference of two means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from kbatch import outcome as outcomes
from kbatch.outcome import Goal, Outcome
from kbatch.records.store import Record


def is_share(metric: str) -> bool:
    """Whether a metric is the share of examples that are right.

    The standard error of a share follows from the number of examples.

    >>> is_share("val_binary_accuracy"), is_share("val_acc"), is_share("val_auc")
    (True, True, False)
    """
    return "accuracy" in metric or metric.split("_")[-1] == "acc"


def value_error(value: float | None, metric: str, examples: int) -> float | None:
    """Return the standard error of a value measured on some examples; `None` if unknown."""
    if value is None or not is_share(metric) or not 0 <= value <= 1 or examples < 1:
        return None
    return outcomes.standard_error(value, examples)


def widest_difference(metric: str, examples: int) -> float:
    """Return the difference of two measurements of equal models that chance seldom exceeds.

    Two standard errors of a difference, where the share is a half; infinity if unknown.

    >>> round(widest_difference("val_accuracy", 400), 3), widest_difference("val_loss", 400)
    (0.071, inf)
    """
    error = value_error(0.5, metric, examples)
    return math.inf if error is None else 2 * math.sqrt(2) * error


def score_error(outcome: Outcome, goal: Goal, examples: int) -> float | None:
    """Return the standard error of one training's score; `None` if unknown.

    Without a target it is the value's error per second of the horizon. With a target that was
    reached, the score is a time, which has two errors: the distance of two measurements, and the
    time by which a value one standard error lower is reached sooner.
    """
    value, target = value_error(outcome.value, goal.metric, examples), goal.target
    reached = None if target is None else outcomes.seconds_to(outcome.curve, target, goal.direction)
    if not reached or target is None:
        return None if value is None else value / goal.seconds
    before = max((seconds for seconds, _ in outcome.curve if seconds < reached), default=0.0)
    sign = 1 if goal.direction == "max" else -1
    sooner = (
        outcomes.seconds_to(outcome.curve, target - sign * (value or 0.0), goal.direction)
        or reached
    )
    # The time is uniformly distributed between two measurements: its standard deviation is their
    # distance over the root of 12.
    seconds = math.hypot((reached - before) / math.sqrt(12), reached - sooner)
    return abs(target - goal.chance) / reached * seconds / reached


# The spread of two seeds has one degree of freedom: the interval would be 13 standard errors wide.
FEWEST_SEEDS = 3


FALSE_CLAIMS = 0.05


# The share of the binomial variance p (1 - p) / n that recipe and examples cause together. Further
# seeds do not reduce it, since they are measured on the same examples. Measured: 5 % (three
# recipes, eight seeds each, 2,000 drawn pets; 54 % is the seed's).
SAME_EXAMPLES = 0.05


def interval(first: Any, second: Any, first_error: Any, second_error: Any, recipes: int) -> Any:
    """Return half of the 95 % interval around the difference of two mean scores.

    Returns a float, or an array of them; `nan` if there are fewer than three seeds.
    """
    sides = [
        (np.asarray(first), np.square(first_error)),
        (np.asarray(second), np.square(second_error)),
    ]
    if min(scores.shape[-1] for scores, _ in sides) < FEWEST_SEEDS:
        return math.nan
    # Few seeds may agree by luck, but not better than they were measured.
    spreads = [
        np.maximum(scores.var(axis=-1, ddof=1), measured) / scores.shape[-1]
        for scores, measured in sides
    ]
    variance = sum(spreads) + SAME_EXAMPLES * sum(measured for _, measured in sides)
    unsure = sum(
        spread**2 / (scores.shape[-1] - 1)
        for spread, (scores, _) in zip(spreads, sides, strict=True)
    )
    # Rounded down: with three seeds, and recipes of very unequal spread, Welch's own number lets
    # 6 % of false claims pass.
    freedom = np.floor(np.square(variance) / np.maximum(unsure, np.finfo(float).tiny))
    return special.stdtrit(freedom, 1 - FALSE_CLAIMS / (2 * recipes)) * np.sqrt(variance)


def measuring_error(records: Sequence[Record], goal: Goal, examples: int) -> float:
    """The standard error of measuring one score, averaged over a recipe's trainings."""
    errors = [score_error(record.outcome, goal, examples) or 0.0 for record in records]
    return math.sqrt(statistics.fmean(error**2 for error in errors))
