"""Goal: what every trial is given and judged by: seconds, metric, chance and target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kbatch import scoring
from kbatch.errors import SearchError
from kbatch.outcome import SCORED, Outcome


@dataclass(frozen=True)
class Goal:
    """What every trial is given and judged by.

    Attributes:
        seconds: Float, the horizon: training seconds of each trial.
        metric: String, what is measured, such as `"val_accuracy"`.
        direction: `"max"` or `"min"`.
        chance: Float, the metric of a model that learned nothing.
        target: Float, the value that is good enough; `None` for as good as possible.
    """

    seconds: float
    metric: str
    direction: str
    chance: float
    target: float | None = None

    def score(self, outcome: Outcome) -> float:
        """The outcome's score; 0 unless it ended at its horizon, its target or by a callback of the user's."""
        if outcome.ended not in SCORED:
            return 0.0
        return scoring.score(outcome.curve, self.seconds, self.chance, self.target, self.direction)

    def to_dict(self) -> dict[str, Any]:
        """The goal in JSON's own types."""
        return asdict(self)


def goal_of(
    seconds: float,
    metric: str,
    direction: str | None,
    chance: float | None,
    target: float | None,
    labels: Callable[[], np.ndarray],
) -> Goal:
    """A goal with direction and chance inferred for accuracies and the area under the ROC curve.

    Args:
        seconds: Float above 0.
        metric: String that begins with `"val_"`.
        direction: `"max"`, `"min"`, or `None` to infer it.
        chance: Float, or `None` to infer it: the share of the most frequent class for accuracies, 0.5 for AUC.
        target: Float or `None`.
        labels: Function that gives the validation labels; called only to infer chance.

    Raises:
        SearchError: If something is missing or makes no sense.
    """
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds < float("inf"):
        raise SearchError("The training seconds of a trial must be a number above 0", seconds, "Pass seconds_per_trial=60, say")
    if not isinstance(metric, str) or not metric.startswith("val_"):
        raise SearchError('`metric` must be measured on validation data: "val_" and the name', metric, 'Pass "val_accuracy", say')
    if direction not in ("max", "min", None):
        raise SearchError('`direction` must be "max" or "min"', direction, "Say where the metric should go")
    name = metric.removeprefix("val_")
    known = _is_accuracy(name) or _is_auc(name)
    if not known and (direction is None or chance is None):
        raise SearchError(
            "A metric other than an accuracy or AUC must come with direction= and chance=",
            f"{metric}, direction={direction}, chance={chance}",
            'Pass direction="max" or "min", and chance= what a model that learned nothing reaches',
        )
    if chance is None:
        chance = most_frequent_share(labels()) if _is_accuracy(name) else 0.5
    goal = Goal(float(seconds), metric, direction or "max", float(chance), None if target is None else float(target))
    if target is not None and (target <= chance if goal.direction == "max" else target >= chance):
        raise SearchError(f"`target` must be better than chance ({chance:.3g})", target, "Pass a value that takes learning to reach")
    return goal


def most_frequent_share(labels: np.ndarray) -> float:
    """The share of the most frequent class: what always answering it reaches.

    Args:
        labels: Array of shape `(n,)` or `(n, 1)` of class numbers, or `(n, classes)` one-hot.

    Raises:
        SearchError: If the labels are not those of one class per example.

    Example:
    >>> most_frequent_share(np.array([0, 1, 1, 1]))
    0.75
    """
    classes = labels.argmax(axis=1) if labels.ndim == 2 and labels.shape[1] > 1 else labels.reshape(len(labels), -1)
    numbers = classes.astype("float64")
    one_hot = labels.ndim != 2 or labels.shape[1] == 1 or np.allclose(labels.sum(axis=1), 1)
    if labels.ndim > 2 or not one_hot or not np.array_equal(numbers, np.round(numbers)):
        raise SearchError("Chance can be inferred from one class per example", f"labels of shape {labels.shape}", "Pass chance=")
    counts = np.unique(numbers, return_counts=True)[1]
    return float(counts.max() / counts.sum())


def _is_accuracy(name: str) -> bool:
    return name in ("acc", "accuracy") or (name.endswith("_accuracy") and not name.startswith(("top_k", "sparse_top_k")))


def _is_auc(name: str) -> bool:
    return name == "auc" or (name.startswith("auc_") and name[4:].isdigit())
