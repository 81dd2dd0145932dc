"""Metrics: what a metric's name says: where it should go, what it can reach, and what can be known of its chance."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import keras

from kbatch.building.compiled import CompileArguments, said_of
from kbatch.building.layer_names import snake_case

ACCURACIES = (
    "accuracy",
    "acc",
    "binary_accuracy",
    "categorical_accuracy",
    "sparse_categorical_accuracy",
)
BINARY, AUC, LOSS = "binary_accuracy", "auc", "loss"
# least at the median, the mean, or between
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
# falls, but a loss of one's own may be anything, and these may be below 0
BELOW_0 = (LOSS, "kl_divergence", "poisson")


def known_as(name: str) -> str | None:
    """The name of Keras' own that a metric of a log ends with, after what may be an output's name; `None` if with none.

    >>> known_as("mae"), known_as("head_accuracy"), known_as("top_k_categorical_accuracy"), known_as("points")
    ('mean_absolute_error', 'accuracy', 'top_k_categorical_accuracy', None)
    """
    parts = name.split("_")
    endings = ("_".join(parts[first:]) for first in range(len(parts)))
    return next((known for known in map(exactly, endings) if known), None)


def exactly(name: str) -> str | None:
    """The name of Keras' own that a metric has, whichever of its names and numbers it goes by; `None` if it has none.

    >>> exactly("mse"), exactly("auc_1"), exactly("head_accuracy")
    ('mean_squared_error', 'auc', None)
    """
    bare = re.sub(r"_\d+$", "", name.removeprefix("weighted_"))
    known = SAME.get(bare, bare)
    return known if known in (*RISING, *FALLING) else None


def direction_of(name: str) -> str | None:
    """`"max"` or `"min"`, where a metric of this name should go; `None` if the name does not say."""
    known = known_as(name)
    if known is None:
        return None
    return "max" if known in RISING else "min"


def bounds_of(name: str) -> tuple[float, float]:
    """The lowest and the highest value that a metric of this name can have."""
    known = known_as(name)
    if known in SHARES:
        return 0.0, 1.0
    lowest = 0.0 if known in FALLING and known not in BELOW_0 else -float("inf")
    return lowest, float("inf")


def may_have_chance(name: str) -> bool:
    """Whether chance can be found for a metric of this name, once there are a model and data."""
    return known_as(name) in (*ACCURACIES, *ERRORS, AUC, LOSS)


class Measured:
    """What a compiled model measures, by the names in Keras' logs.

    Args:
        model: `keras.Model`, compiled or not; `None` if there is none, of which nothing is known.
        arguments: Loss and metrics for a model that is not compiled.
    """

    def __init__(self, model: keras.Model | None, arguments: CompileArguments) -> None:
        config = {} if model is None else said_of(model, arguments)
        self.loss = config.get("loss")
        self.metrics, self.weighted_metrics = config.get("metrics"), config.get("weighted_metrics")
        functional = (
            model if hasattr(model, "output_names") else getattr(model, "_functional", None)
        )
        self.outputs: tuple[str, ...] = tuple(getattr(functional, "output_names", ()))
        self.output_shapes = tuple(
            tuple(output.shape) for output in getattr(model, "outputs", None) or ()
        )

    def own_name(self, name: str) -> str:
        """The name under which the model measures what is asked for: `mae` for `mean_absolute_error`, if compiled with that."""
        bare = self.split(name)[2].removeprefix("weighted_")
        measured = {_name(part) for part in self._parts()}
        same = [other for other in measured if exactly(bare) and exactly(other) == exactly(bare)]
        return (
            f"{name.removesuffix(bare)}{same[0]}"
            if len(same) == 1 and bare not in measured
            else name
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What the logs hold, apart from outputs' prefixes; empty if the model is compiled with no metric."""
        parts = [_name(part) for part in self._parts()]
        return (*dict.fromkeys(parts), LOSS) if parts else ()

    def split(self, name: str) -> tuple[str, int, str]:
        """An output's prefix (empty for a model with one output), the output's position, and the metric's own name."""
        if len(self.outputs) > 1:
            fitting = [
                (f"{output}_", place)
                for place, output in enumerate(self.outputs)
                if name.startswith(f"{output}_")
            ]
            if fitting:
                prefix, place = max(fitting, key=lambda pair: len(pair[0]))
                return prefix, place, name.removeprefix(prefix)
        return "", 0, name

    def is_weighted(self, bare: str) -> bool:
        """Whether a metric is measured with the weights of the validation examples."""
        if bare.startswith("weighted_") or bare == LOSS:
            return True
        plain = {_name(part) for part in _flat(self.metrics)}
        return bare not in plain and bare in {_name(part) for part in _flat(self.weighted_metrics)}

    def curve_of(self, bare: str) -> str:
        """`"ROC"` or `"PR"`, what an area under the curve is of."""
        part = self.part(bare)
        return str(part.get_config()["curve"]) if isinstance(part, keras.metrics.AUC) else "ROC"

    def part(self, bare: str) -> Any:
        """What the model was compiled with for a metric; `None` if it measures none of this name."""
        return next(
            (part for part in self._parts() if _name(part) == bare.removeprefix("weighted_")), None
        )

    def known_loss(self) -> str | None:
        """The name of Keras' own of the one loss that the model is compiled with; `None` if there are others."""
        losses = list(_flat(self.loss))
        return known_as(_name(losses[0])) if len(losses) == 1 else None

    def _parts(self) -> Iterator[Any]:
        yield from _flat(self.metrics)
        yield from _flat(self.weighted_metrics)


def _flat(parts: Any) -> Iterator[Any]:
    yield from (part for part in keras.tree.flatten(parts) if part is not None)


def _name(part: Any) -> str:
    """The name in the logs of what a model is compiled with: a name, an object or a function."""
    if isinstance(part, str):
        return part
    if isinstance(part, keras.losses.Loss):
        return snake_case(type(part).__name__) if type(part).__module__.startswith("keras.") else ""
    return str(getattr(part, "name", None) or getattr(part, "__name__", type(part).__name__))
