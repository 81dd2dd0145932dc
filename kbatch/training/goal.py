"""A goal made of what the user says, with what the model and the data tell."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kbatch.data.validation import Data
from kbatch.errors import SearchError
from kbatch.goal import Goal
from kbatch.scoring import Direction
from kbatch.training import metrics
from kbatch.training.chance import chance_of
from kbatch.training.held_out_labels import of_one_value


def horizon_of(seconds: Any) -> float:
    """Return the training seconds of a trial as a float.

    Raises:
        SearchError: If they are not a finite number above 0.
    """
    number = _number(seconds)
    if number is None or not 0 < number < math.inf:
        raise SearchError(
            "The training seconds of a trial must be a number above 0",
            repr(seconds),
            "Pass 60, say",
        )
    return number


def judged_by(metric: Any, direction: Any, chance: Any, target: Any) -> dict[str, Any]:
    """Check metric, direction, chance and target as far as that takes no model and no data.

    Args:
        metric: String that begins with `"val_"`.
        direction: `"max"`, `"min"`, or `None` to infer it from the metric's name.
        chance: Number, or `None` to measure it.
        target: Number or `None`.

    Returns:
        A dictionary of the four in JSON's own types.

    Raises:
        SearchError: If something is missing or makes no sense.
    """
    if not isinstance(metric, str) or not metric.startswith("val_"):
        raise SearchError(
            '`metric` must be measured on validation data: "val_" and the name',
            metric,
            'Pass "val_accuracy", say; a list of metrics to compile with is `metrics=`',
        )
    if direction not in ("max", "min", None):
        raise SearchError(
            '`direction` must be "max" or "min"', direction, "Say where the metric should go"
        )
    name = metric.removeprefix("val_")
    if direction is None and metrics.direction_of(name) is None:
        raise SearchError(
            "A metric whose name Keras does not know must come with direction=",
            metric,
            'Pass direction="max" or "min"',
        )
    within = {"chance": _within(name, "chance", chance), "target": _within(name, "target", target)}
    _check_target(within["target"], within["chance"], direction or metrics.direction_of(name))
    return {"metric": metric, "direction": direction, **within}


def goal_of(
    seconds: float,
    metric: str,
    direction: str | None,
    chance: float | None,
    target: float | None,
    data: Data,
    measured: metrics.Measured,
) -> Goal:
    """Return a goal, with direction and chance inferred where the user did not give them.

    Args:
        seconds: Float above 0, infinite for a training that ends by updates.
        metric: See `judged_by`. Of a metric with two names, such as `mae`, the model decides which.
        direction: See `judged_by`.
        chance: See `judged_by`; measured by `kbatch.training.chance.chance_of`.
        target: See `judged_by`.
        data: Training and validation data.
        measured: The metrics and losses of the model.

    Raises:
        SearchError: If something is missing or makes no sense.
    """
    name = measured.own_name(metric.removeprefix("val_"))
    towards: Direction = "max"
    if (direction or metrics.direction_of(name)) == "min":
        towards = "min"
    note = ""
    if chance is None:
        chance, note = chance_of(name, towards, data, measured)
    _check_target(target, chance, towards)
    note = "; ".join(each for each in (note, of_one_value(data)) if each)
    return Goal(seconds, f"val_{name}", towards, chance, target, note)


def _check_target(target: float | None, chance: float | None, direction: str | None) -> None:
    if target is None or chance is None:
        return
    better = target > chance if direction == "max" else target < chance
    if not better:
        raise SearchError(
            f"`target` must be better than chance ({chance:.3g})",
            target,
            "Pass a value that takes learning to reach",
        )


def _within(name: str, argument: str, value: Any) -> float | None:
    """A value as a float; refused if the metric cannot reach it."""
    if value is None:
        return None
    number = _number(value)
    if number is None or not math.isfinite(number):
        raise SearchError(
            f"`{argument}` must be a finite number", value, "Pass a value of the metric"
        )
    lowest, highest = metrics.bounds_of(name)
    if not lowest <= number <= highest:
        raise SearchError(
            f"`{argument}` must be a value that val_{name} can have, {_words(lowest, highest)}",
            value,
            _instead(number, highest),
        )
    return number


def _words(lowest: float, highest: float) -> str:
    """The bounds of a metric in words."""
    return f"at least {lowest:g}" if highest == math.inf else f"from {lowest:g} to {highest:g}"


def _instead(number: float, highest: float) -> str:
    """The remedy for a value out of bounds, which may be a percentage."""
    if highest < number <= 100:
        return f"Pass a share, such as {number / 100:g} for {number:g} %"
    return "Pass a value that it can reach"


def _number(value: Any) -> float | None:
    """A number of Python's or NumPy's as a float; `None` for a boolean or anything else."""
    numeric = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(
        value, bool
    )
    try:
        return float(value) if numeric else None
    except OverflowError:  # a whole number that no float holds
        return None
