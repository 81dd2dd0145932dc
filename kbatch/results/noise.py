"""The standard errors of measured values and scores, from the number of validation examples."""

from __future__ import annotations

import math

from kbatch import scoring
from kbatch.goal import Goal
from kbatch.outcome import Outcome


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
    return scoring.standard_error(value, examples)


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

    Args:
        outcome: What was measured.
        goal: The goal of the search.
        examples: Integer, validation examples.
    """
    value, target = value_error(outcome.value, goal.metric, examples), goal.target
    reached = None if target is None else scoring.seconds_to(outcome.curve, target, goal.direction)
    if not reached or target is None:
        return None if value is None else value / goal.seconds
    before = max((seconds for seconds, _ in outcome.curve if seconds < reached), default=0.0)
    sign = 1 if goal.direction == "max" else -1
    sooner = (
        scoring.seconds_to(outcome.curve, target - sign * (value or 0.0), goal.direction) or reached
    )
    # The time is uniformly distributed between two measurements: its standard deviation is their
    # distance over the root of 12.
    seconds = math.hypot((reached - before) / math.sqrt(12), reached - sooner)
    return abs(target - goal.chance) / reached * seconds / reached
