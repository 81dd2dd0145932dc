"""Metrics by name: their direction, their bounds, and those that a model measures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import keras

from kbatch.models.compilation import CompileArguments, said_of, snake_case
from kbatch.runtime.keras_private import output_names

ACCURACIES = (
    "accuracy",
    "acc",
    "binary_accuracy",
    "categorical_accuracy",
    "sparse_categorical_accuracy",
)
BINARY, AUC, LOSS = "binary_accuracy", "auc", "loss"
# Errors whose best constant answer is the labels' median, their mean, or between.
ERRORS = (
    "mean_absolute_error",
    "mean_squared_error",
    "root_mean_squared_error",
    "huber",
    "log_cosh",
)
SHARES = (
    *ACCURACIES,
    AUC,
    "top_k_categorical_accuracy",
    "sparse_top_k_categorical_accuracy",
    "precision",
    "recall",
    "precision_at_recall",
    "recall_at_precision",
    "sensitivity_at_specificity",
    "specificity_at_sensitivity",
    "f1_score",
    "fbeta_score",
    "io_u",
    "mean_io_u",
    "binary_io_u",
    "one_hot_io_u",
    "one_hot_mean_io_u",
)
FALLING = (
    *ERRORS,
    LOSS,
    "crossentropy",
    "ce",
    "mean_absolute_percentage_error",
    "mean_squared_logarithmic_error",
    "binary_crossentropy",
    "categorical_crossentropy",
    "sparse_categorical_crossentropy",
    "binary_focal_crossentropy",
    "categorical_focal_crossentropy",
    "kl_divergence",
    "poisson",
    "hinge",
    "squared_hinge",
    "categorical_hinge",
    "false_positives",
    "false_negatives",
)
RISING = (*SHARES, "r2_score", "true_positives", "true_negatives")
SAME = {
    "mae": "mean_absolute_error",
    "mse": "mean_squared_error",
    "rmse": "root_mean_squared_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "logcosh": "log_cosh",
    "acc": "accuracy",
    "bce": "binary_crossentropy",
    "kld": "kl_divergence",
}
# These fall, but may be below 0, and a loss of the user's own may be anything.
BELOW_0 = (LOSS, "kl_divergence", "poisson")


def known_as(name: str) -> str | None:
    """Return Keras' own name of a metric in a log, without the name of an output before it.

    `None` if Keras has no metric of the name.

    >>> known_as("mae"), known_as("head_accuracy"), known_as("points")
    ('mean_absolute_error', 'accuracy', None)
    >>> known_as("top_k_categorical_accuracy")
    'top_k_categorical_accuracy'
    """
    parts = name.split("_")
    endings = ("_".join(parts[first:]) for first in range(len(parts)))
    return next((known for known in map(exactly, endings) if known), None)


def exactly(name: str) -> str | None:
    """Return Keras' own name of a metric, from its short name or a name with a number.

    `None` if Keras has no metric of the name.

    >>> exactly("mse"), exactly("auc_1"), exactly("head_accuracy")
    ('mean_squared_error', 'auc', None)
    """
    bare = re.sub(r"_\d+$", "", name.removeprefix("weighted_"))
    known = SAME.get(bare, bare)
    return known if known in (*RISING, *FALLING) else None


def direction_of(name: str) -> str | None:
    """Return `"max"` or `"min"`, the direction of a metric; `None` for an unknown name."""
    known = known_as(name)
    if known is None:
        return None
    return "max" if known in RISING else "min"


def bounds_of(name: str) -> tuple[float, float]:
    """Return the lowest and the highest value of a metric."""
    known = known_as(name)
    if known in SHARES:
        return 0.0, 1.0
    lowest = 0.0 if known in FALLING and known not in BELOW_0 else -float("inf")
    return lowest, float("inf")


class Measured:
    """The metrics and losses of a compiled model, by their names in Keras' logs."""

    def __init__(self, model: keras.Model | None, arguments: CompileArguments) -> None:
        config = {} if model is None else said_of(model, arguments)
        self.model = model
        self.loss, self.loss_weights = config.get("loss"), config.get("loss_weights")
        self.metrics, self.weighted_metrics = config.get("metrics"), config.get("weighted_metrics")
        self.outputs: tuple[str, ...] = output_names(model)
        self.output_shapes = tuple(
            tuple(output.shape) for output in getattr(model, "outputs", None) or ()
        )

    def own_name(self, name: str) -> str:
        """Return the model's own name of a metric.

        It is `mae` for `mean_absolute_error`, if the model is compiled with `mae`.
        """
        bare = self.split(name)[2].removeprefix("weighted_")
        measured = {_name(part) for part in self._parts()}
        same = [other for other in measured if exactly(bare) and exactly(other) == exactly(bare)]
        if len(same) == 1 and bare not in measured:
            return f"{name.removesuffix(bare)}{same[0]}"
        return name

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the logs without the outputs' prefixes; empty without metrics."""
        parts = [_name(part) for part in self._parts()]
        return (*dict.fromkeys(parts), LOSS) if parts else ()

    def split(self, name: str) -> tuple[str, int, str]:
        """Split a name into the output's prefix, the output's position and the metric's own name.

        The prefix is empty for a model with one output.
        """
        found = ("", 0, name)
        if len(self.outputs) > 1:
            for place, output in enumerate(self.outputs):
                prefix = f"{output}_"
                # One output's name may begin with another's: the longest counts.
                if name.startswith(prefix) and len(prefix) > len(found[0]):
                    found = (prefix, place, name.removeprefix(prefix))
        return found

    def known_loss(self) -> str | None:
        """Return Keras' own name of the model's loss; `None` if unknown or there are several."""
        losses = list(_flat(self.loss))
        return known_as(_name(losses[0])) if len(losses) == 1 else None

    def _parts(self) -> Iterator[Any]:
        yield from _flat(self.metrics)
        yield from _flat(self.weighted_metrics)


def _flat(parts: Any) -> Iterator[Any]:
    yield from (part for part in keras.tree.flatten(parts) if part is not None)


def _name(part: Any) -> str:
    """The name in the logs of a metric, which is given as a name, an object or a function."""
    if isinstance(part, str):
        return part
    if isinstance(part, keras.losses.Loss):
        return snake_case(type(part).__name__) if type(part).__module__.startswith("keras.") else ""
    return str(getattr(part, "name", None) or getattr(part, "__name__", type(part).__name__))
