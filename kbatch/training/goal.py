"""Goal: the metric, the seconds to reach it in, and what a model that learned nothing has."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kbatch.data.validation import Data
from kbatch.errors import KbatchError, SearchError
from kbatch.models.policies import explained
from kbatch.outcome import Direction, Goal
from kbatch.training import metrics
from kbatch.training.best_constant import best_constant
from kbatch.training.metrics import (
    LOSS,
    ConstantModel,
    LabelPart,
    ModelMetrics,
    Outputs,
    of_one_value,
    outputs_of,
    read_labels,
)

HOW = "Pass chance=, the metric of the best constant answer on the validation data"
ROUNDING = 1e-6  # of a metric in single precision
OWN = ("test_step", "compute_loss", "compute_metrics")  # what a model may override


def chance_of(name: str, direction: str, data: Data, measured: ModelMetrics) -> tuple[float, str]:
    """Measure chance of a metric, and say how if that is not plain.

    It is what the model's own metric or loss gives on the validation data for the best answer that
    is the same for each example: a class, the class shares, the mean, the median and more, with
    the weights and masks that the metric takes.

    Returns a tuple of chance and a sentence, which may be empty.
    """
    try:
        outputs = _outputs(data, measured)
        parts = read_labels(data, outputs)
        model = ConstantModel(_compiled(name, measured, outputs), outputs, parts[0])
    except KbatchError:
        raise
    except Exception as error:  # layers and metrics, the user's own among them, raise any kind
        raise _unmeasured(name, measured, error) from error
    logged = _logged(name, model, measured)
    _check_loss(logged, model, outputs, measured)
    _check_classes(logged, model, parts)
    ignored = _ignored(logged, model, measured)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            value, found = best_constant(model, logged, direction, parts, outputs, ignored)
    except Exception as error:
        raise _unmeasured(name, measured, error) from error
    plain = _plain(logged, value, model, parts)
    if plain is not None:
        return plain, ""
    hows = _by_output([best.how for best in found], model.places(logged), outputs)
    examples = data.fingerprint["validation"]["examples"]
    words = (
        f"chance is {value:.4g}: what always answering the {hows} of {examples} validation labels "
        f"reaches{_limits(logged, direction, value, model, measured)}"
    )
    return value, words


def most_frequent_share(labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the share of the most frequent class, the accuracy of always answering it.

    Example:
    >>> labels = np.array([0, 1, 1, 1])
    >>> most_frequent_share(labels), most_frequent_share(labels, np.array([9, 1, 1, 1]))
    (0.75, 0.75)
    """
    if labels.ndim == 2 and labels.shape[1] > 1:
        classes = labels.argmax(axis=1)
    else:
        classes = labels.reshape(len(labels), -1)
    try:
        numbers = classes.astype("float64")
    except (TypeError, ValueError) as error:
        raise SearchError(
            "Chance can be inferred from classes that are numbers",
            f"labels of type {labels.dtype}",
            "Pass chance=",
        ) from error
    one_hot = labels.ndim != 2 or labels.shape[1] == 1 or np.allclose(labels.sum(axis=1), 1)
    if labels.ndim > 2 or not one_hot or not np.array_equal(numbers, np.round(numbers)):
        raise SearchError(
            "Chance can be inferred from one class per example",
            f"labels of shape {labels.shape}",
            "Pass chance=",
        )
    _, which = np.unique(numbers, return_inverse=True)
    if weights is not None and weights.size != len(labels):
        raise SearchError(
            "Chance can be inferred from one weight per example",
            f"weights of shape {weights.shape}",
            "Pass chance=",
        )
    flat_weights = None if weights is None else weights.reshape(-1).astype("float64")
    counts = np.bincount(which.reshape(-1), flat_weights)
    return float(counts.max() / counts.sum())


def _outputs(data: Data, measured: ModelMetrics) -> Outputs:
    """The outputs of the model, looked at with validation examples."""
    if measured.model is None:
        raise ValueError("the model could not be made")
    with explained(measured.model.dtype_policy.name):
        return outputs_of(measured.model, next(iter(data.validation))[0])


def _compiled(name: str, measured: ModelMetrics, outputs: Outputs) -> dict[str, Any]:
    """What to compile a constant model with: the loss only where it is asked for.

    A metric of a model that is compiled without any, and measures it by itself, is Keras' own.
    """
    own = {"metrics": measured.metrics, "weighted_metrics": measured.weighted_metrics}
    if name == LOSS or name.endswith(f"_{LOSS}"):
        return {"loss": measured.loss, "loss_weights": measured.loss_weights, **own}
    _, place, bare = measured.split(name)
    if any(own.values()) or metrics.exactly(bare) is None:
        return own
    if len(outputs.shapes) == 1:
        return {"metrics": [bare]}
    return {"metrics": {outputs.names[place]: [bare]}} if outputs.names else own


def _logged(name: str, model: ConstantModel, measured: ModelMetrics) -> str:
    """The name of a metric in the logs."""
    prefix, _, bare = measured.split(name)
    for each in (name, f"{prefix}{bare.removeprefix('weighted_')}"):
        if each in model.names:
            return each
    losses = [LOSS, *(f"{output}_{LOSS}" for output in measured.outputs if measured.outputs[1:])]
    if name in losses:
        raise _no_plain_loss(name, "a model without a loss of its own, whose layers add theirs")
    listed = ", ".join(f"val_{each}" for each in dict.fromkeys([*model.names, *losses]))
    raise SearchError(
        f"`metric` must be one of the model's metrics ({listed}), or come with chance=",
        f"val_{name}",
        "Pass one of these",
    )


def _check_loss(name: str, model: ConstantModel, outputs: Outputs, measured: ModelMetrics) -> None:
    """Refuse a loss of which the labels and outputs are not all."""
    if not model.is_loss(name):
        return
    own = [step for step in OWN[:2] if _overrides(measured.model, step)]
    received = f"a model with its own {own[0]}" if own else ""
    if outputs.adds_losses and name == LOSS:
        received = "a model whose layers add losses"
    if received:
        raise _no_plain_loss(name, received)


def _no_plain_loss(name: str, received: str) -> SearchError:
    return SearchError(
        f"Chance of val_{name} can be measured for a loss of labels and outputs alone",
        received,
        HOW,
    )


def _check_classes(name: str, model: ConstantModel, parts: Sequence[LabelPart]) -> None:
    """Refuse an accuracy of labels that are no classes: no answer is ever right."""
    if metrics.known_as(name) not in metrics.ACCURACIES or model.is_loss(name):
        return
    metric, place, _ = model.metrics[name]
    if not type(metric).__module__.startswith("keras."):
        return
    for part in parts:
        labels = part.labels[place]
        column = labels.ndim == 1 or labels.shape[-1] == 1
        if column and labels.dtype.kind == "f" and not np.array_equal(labels, np.round(labels)):
            raise SearchError(
                f"Chance of val_{name} can be measured for one class per example",
                f"labels such as {labels[labels != np.round(labels)][0]:.4g}",
                HOW,
            )


def _ignored(name: str, model: ConstantModel, measured: ModelMetrics) -> int | None:
    """The class that a metric or loss ignores."""
    own = keras.tree.flatten(measured.loss) if model.is_loss(name) else [model.metrics[name][0]]
    for each in own:
        try:
            ignored = each.get_config().get("ignore_class")
        except (AttributeError, NotImplementedError, TypeError, ValueError):
            continue
        if isinstance(ignored, int):
            return ignored
    return None


def _plain(
    name: str, value: float, model: ConstantModel, parts: Sequence[LabelPart]
) -> float | None:
    """A value that needs no words: the share of the most frequent class, or half of an area."""
    known = metrics.known_as(name)
    if known == metrics.AUC and abs(value - 0.5) < ROUNDING:
        return 0.5
    if known not in metrics.ACCURACIES or model.is_loss(name):
        return None
    _, place, weighted = model.metrics[name]
    given = [part.weights[place] for part in parts] if weighted else []
    weights = [each for each in given if each is not None]
    try:
        labels = np.concatenate([part.labels[place] for part in parts])
        share = most_frequent_share(labels, np.concatenate(weights) if weights else None)
    except (SearchError, ValueError):
        return None
    return share if abs(value - share) < ROUNDING else None


def _by_output(hows: Sequence[str], places: Sequence[int], outputs: Outputs) -> str:
    """What the constant answers are, with the outputs' names if there are several."""
    if len(hows) == 1:
        return hows[0]
    names = outputs.names or [f"output {place}" for place in range(len(outputs.shapes))]
    pairs = zip(hows, places, strict=True)
    return " and the ".join(f"{how} for {names[place]}" for how, place in pairs)


def _limits(
    name: str, direction: str, value: float, model: ConstantModel, measured: ModelMetrics
) -> str:
    """What else is to be known of chance."""
    words = ""
    if value == metrics.bounds_of(name)[direction == "max"]:
        words += "; nothing is better, so every trial will score 0"
    if model.is_loss(name) and _regularized(measured.model):
        words += "; what regularizers add is left out"
    own = [step for step in OWN if _overrides(measured.model, step)]
    return f"{words}; the model's own {own[0]} may measure something else" if own else words


def _overrides(model: Any, step: str) -> bool:
    return getattr(type(model), step) is not getattr(keras.Model, step)


def _regularized(model: Any) -> bool:
    variables = model.trainable_variables
    return any(getattr(each, "regularizer", None) is not None for each in variables)


def _unmeasured(name: str, measured: ModelMetrics, error: Exception) -> SearchError:
    """The refusal of a metric that cannot be evaluated on a constant answer."""
    prefix, place, _ = measured.split(name)
    output = f" of output {measured.outputs[place]}" if prefix else ""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return SearchError(
        f"Chance of val_{name}{output} must be measurable for a constant answer", lines[0], HOW
    )


def horizon_of(seconds: Any) -> float:
    """Return the training seconds of a trial as a float."""
    number = _number(seconds)
    if number is None or not 0 < number < math.inf:
        raise SearchError(
            "The training seconds of a trial must be a number above 0",
            repr(seconds),
            "Pass 60, say",
        )
    return number


def judged_by(metric: Any, direction: Any, chance: Any, target: Any) -> dict[str, Any]:
    """Check metric, direction, chance and target as far as that takes no model and no data."""
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
    measured: metrics.ModelMetrics,
) -> Goal:
    """Return a goal, with direction and chance inferred where the user did not give them."""
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
