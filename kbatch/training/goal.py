"""Goal: what every trial is given and judged by: seconds, metric, chance and target."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kbatch import scoring
from kbatch.data.batches import Data
from kbatch.errors import SearchError
from kbatch.outcome import SCORED, Outcome
from kbatch.training import metrics
from kbatch.training.chance import HOW, chance_of


@dataclass(frozen=True)
class Goal:
    """What every trial is given and judged by.

    Attributes:
        seconds: Float, the horizon: training seconds of each trial.
        metric: String, what is measured, such as `"val_accuracy"`.
        direction: `"max"` or `"min"`.
        chance: Float, the metric of a model that learned nothing.
        target: Float, the value that is good enough; `None` for as good as possible.
        note: A sentence on where chance is from; empty if the user said it or it is plain.
    """

    seconds: float
    metric: str
    direction: str
    chance: float
    target: float | None = None
    note: str = ""

    def score(self, outcome: Outcome) -> float:
        """The outcome's score; 0 unless it ended at its horizon, its target or by a callback of the user's."""
        if outcome.ended not in SCORED:
            return 0.0
        return scoring.score(outcome.curve, self.seconds, self.chance, self.target, self.direction)

    def to_dict(self) -> dict[str, Any]:
        """The goal in JSON's own types."""
        return asdict(self)


def horizon_of(seconds: Any) -> float:
    """The training seconds of a trial as a float.

    Raises:
        SearchError: If they are no finite number above 0.
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
    """What trials are judged by, checked as far as it can be without model and data, in JSON's own types.

    Args:
        metric: String that begins with `"val_"`.
        direction: `"max"`, `"min"`, or `None` to infer it from the metric's name.
        chance: Number, or `None` to infer it.
        target: Number or `None`.

    Raises:
        SearchError: If something is missing or makes no sense.
    """
    if not isinstance(metric, str) or not metric.startswith("val_"):
        raise SearchError(
            '`metric` must be measured on validation data: "val_" and the name',
            metric,
            'Pass "val_accuracy", say',
        )
    if direction not in ("max", "min", None):
        raise SearchError(
            '`direction` must be "max" or "min"', direction, "Say where the metric should go"
        )
    name = metric.removeprefix("val_")
    if direction is None and metrics.direction_of(name) is None:
        raise SearchError(
            "A metric whose name Keras does not know must come with direction= and chance=",
            metric,
            'Pass direction="max" or "min"',
        )
    if chance is None and not metrics.may_have_chance(name):
        raise SearchError(
            "A metric other than an accuracy, AUC or an error must come with chance=", metric, HOW
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
    """A goal, with direction and chance inferred where the user did not say them.

    Args:
        seconds: Float above 0, infinite for a training that ends by updates.
        metric: See `judged_by`. A metric of two names, such as `mae`, is that which the model
            measures.
        direction: See `judged_by`.
        chance: See `judged_by`; inferred by `kbatch.training.chance.chance_of`.
        target: See `judged_by`.
        data: What is trained and measured on.
        measured: What the model measures.

    Raises:
        SearchError: If something is missing or makes no sense.
    """
    name = measured.own_name(metric.removeprefix("val_"))
    towards = direction or metrics.direction_of(name) or "max"
    found, note = chance_of(name, towards, data, measured) if chance is None else (chance, "")
    _check_target(target, found, towards)
    return Goal(seconds, f"val_{name}", towards, found, target, note)


def _check_target(target: float | None, chance: float | None, direction: str | None) -> None:
    if (
        target is not None
        and chance is not None
        and (target <= chance if direction == "max" else target >= chance)
    ):
        raise SearchError(
            f"`target` must be better than chance ({chance:.3g})",
            target,
            "Pass a value that takes learning to reach",
        )


def _within(name: str, argument: str, value: Any) -> float | None:
    """A value as a float, refused if the metric cannot reach it."""
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
    return f"at least {lowest:g}" if highest == math.inf else f"from {lowest:g} to {highest:g}"


def _instead(number: float, highest: float) -> str:
    return (
        f"Pass a share, such as {number / 100:g} for {number:g} %"
        if highest < number <= 100
        else "Pass a value that it can reach"
    )


def _number(value: Any) -> float | None:
    """A number of Python's or NumPy's as a float; `None` if it is none, or a boolean."""
    numeric = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(
        value, bool
    )
    return float(value) if numeric else None
