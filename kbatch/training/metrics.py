"""Metrics and outputs of a model, as chance of a metric needs them."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data.validation import Data
from kbatch.models.compilation import (
    CompileArguments,
    copied_metric,
    fresh_names,
    said_of,
    snake_case,
)
from kbatch.models.start import seed_scope
from kbatch.runtime import keras_private
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


class ModelMetrics:
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

    @property
    def scored(self) -> str:
        """The metric to score by unless one is named: accuracy, else the first, else the loss."""
        own = [name for name in self.names if name != LOSS]
        first = [name for name in own if exactly(name) in ACCURACIES]
        return [*first, *own, LOSS][0]

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


LOOKED_AT = 2  # examples that a model is called with
# What the values of an output are, by its last activation; any number by default.
SHARES_OF_ONE, UNIT, POSITIVE, BOTH, ANY = "shares", "unit", "positive", "both", "any"
RANGES = {
    "softmax": SHARES_OF_ONE,
    "sigmoid": UNIT,
    "hard_sigmoid": UNIT,
    "relu": POSITIVE,
    "softplus": POSITIVE,
    "exponential": POSITIVE,
    "tanh": BOTH,
    "softsign": BOTH,
}
Masks = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model, in the order in which Keras measures them."""

    structure: Any  # the outputs as the model returns them: one, a list, a tuple or a dictionary
    names: tuple[str, ...]  # strings; empty where the outputs have no names
    # shapes without the examples' axis; `None` for a length that varies
    shapes: tuple[tuple[int | None, ...], ...]
    ranges: tuple[str, ...]  # what the values of each output are
    # function of the inputs that returns the mask of each output; `None` without masks
    masks: Masks | None
    adds_losses: bool  # whether layers add losses of their own

    def flat(self, structure: Any) -> list[Any]:
        """Return the part of each output of labels, weights or outputs."""
        if isinstance(structure, Mapping) and set(structure) == set(self._keys):
            return [structure[key] for key in self._keys]
        return list(keras.tree.flatten(structure))

    def packed(self, parts: list[Any]) -> Any:
        """Return parts, one for each output, as the model returns them."""
        if isinstance(self.structure, Mapping):
            by_name = dict(zip(self._keys, parts, strict=True))
            return {key: by_name[key] for key in self.structure}
        return keras.tree.pack_sequence_as(self.structure, parts)

    @property
    def _keys(self) -> list[str]:
        """The outputs' names in Keras' order: the model's, or sorted if only a dictionary names."""
        own = self.structure if isinstance(self.structure, Mapping) else None
        if own is None or set(own) == set(self.names):
            return list(self.names)
        return sorted(own)


def outputs_of(model: keras.Model, x: Any) -> Outputs:
    """Look at the outputs of a model, which is built by that if it was not."""
    few = keras.tree.map_structure(lambda part: part[:LOOKED_AT], x)
    called, adds_losses = _called(model, few)
    symbolic = getattr(model, "outputs", None) or []
    flat = list(keras.tree.flatten(called))
    shapes = [tuple(part.shape) for part in (symbolic if len(symbolic) == len(flat) else flat)]
    masked = any(keras_private.mask_of(part) is not None for part in flat)
    plain = Outputs(called, keras_private.output_names(model), (), (), None, adds_losses)
    order = [next(k for k, own in enumerate(flat) if own is part) for part in plain.flat(called)]
    ranges = [_range_of(part) for part in symbolic] or [ANY] * len(flat)
    return Outputs(
        keras.tree.map_structure(lambda _: 0, called),
        plain.names,
        tuple(shapes[place][1:] for place in order),
        tuple(ranges[place] for place in order),
        _masks(model, plain) if masked else None,
        adds_losses,
    )


def _called(model: keras.Model, x: Any) -> tuple[Any, bool]:
    """The outputs of a few examples, and whether layers added losses; no variable changes."""
    with seed_scope(random.randrange(1)), fresh_names():
        if not model.built:
            model(x, training=False)
        with keras.StatelessScope(collect_losses=True) as scope:
            called = model(x, training=False)
    return called, bool(scope.losses)


def _masks(model: keras.Model, outputs: Outputs) -> Masks:
    """A function that computes the masks alone: TensorFlow prunes what they do not need."""

    @tf.function(reduce_retracing=True)
    def masks(x: Any) -> list[Any]:
        with keras.StatelessScope(collect_losses=True):
            flat = outputs.flat(model(x, training=False))
        found = [keras_private.mask_of(part) for part in flat]
        return [tf.constant(True) if mask is None else mask for mask in found]

    def numpy_masks(x: Any) -> list[Any]:
        found = [np.asarray(mask) for mask in masks(x)]
        return [mask if mask.ndim else None for mask in found]

    return numpy_masks


def _range_of(output: Any) -> str:
    """What the values of an output are, by the activation of the layer that makes it."""
    history = getattr(output, "_keras_history", None)
    operation = None if history is None else history.operation
    activation = getattr(operation, "activation", None)
    name = getattr(activation, "__name__", None) or type(operation).__name__.lower()
    return RANGES.get(name, ANY)


MOST_ENTRIES = 1 << 27  # labels that are read at most; chosen by hand
SHOWN = 5  # digits of a label in a sentence


@dataclass(frozen=True)
class LabelPart:
    """Some validation examples: what Keras measures together."""

    labels: tuple[np.ndarray, ...]  # each output
    weights: tuple[np.ndarray | None, ...]  # each output, or `None` for each
    masks: tuple[np.ndarray | None, ...]  # each output, or `None` for each

    @property
    def examples(self) -> int:
        """Integer, how many there are."""
        return len(self.labels[0])

    def rows(self, start: int, stop: int) -> LabelPart:
        """Return some of the examples."""
        return self._taken(slice(start, stop))

    def each(self, every: int) -> LabelPart:
        """Return one of every so many examples."""
        return self._taken(slice(None, None, every))

    def _taken(self, rows: slice) -> LabelPart:
        return LabelPart(
            tuple(own[rows] for own in self.labels),
            tuple(None if own is None else own[rows] for own in self.weights),
            tuple(None if own is None else own[rows] for own in self.masks),
        )


def joined(parts: Sequence[LabelPart]) -> LabelPart | None:
    """Return parts as one; `None` if their shapes differ, or only some have weights or masks."""
    each = ((*part.labels, *part.weights, *part.masks) for part in parts)
    columns = list(zip(*each, strict=True))
    if any(len(_shapes(column)) > 1 for column in columns):
        return None
    flat: list[Any] = [None if each[0] is None else np.concatenate(each) for each in columns]
    count = len(parts[0].labels)
    return LabelPart(tuple(flat[:count]), tuple(flat[count : 2 * count]), tuple(flat[2 * count :]))


def _shapes(arrays: Sequence[Any]) -> set[Any]:
    return {None if each is None else each.shape[1:] for each in arrays}


def read_labels(data: Data, outputs: Outputs) -> tuple[LabelPart, ...]:
    """Return the validation labels in batches, evenly spread ones if they are very many."""
    parts: list[LabelPart] = []
    every = 1
    for number, batch in enumerate(data.validation):
        if number % every:
            continue
        x, y, weights = keras.utils.unpack_x_y_sample_weight(tuple(batch))
        count = len(outputs.shapes)
        labels = tuple(np.asarray(each) for each in outputs.flat(y))
        if len(labels) != count:
            raise ValueError(f"{len(labels)} arrays of labels for {count} outputs")
        masks = [None] * count if outputs.masks is None else outputs.masks(x)
        part = LabelPart(labels, _of_outputs(weights, outputs), tuple(masks))
        if not parts:
            batches = data.fingerprint["validation"]["examples"] / part.examples
            every = max(math.ceil(batches * sum(each.size for each in labels) / MOST_ENTRIES), 1)
        parts.append(part)
    return tuple(parts)


def of_one_value(data: Data) -> str:
    """Return a sentence if all validation labels of an output are the same, else nothing."""
    first: list[Any] = []
    same: list[bool] = []
    for batch in data.validation:
        labels = [np.asarray(each) for each in keras.tree.flatten(batch[1])]
        if not first:
            first = [each[:1] for each in labels]
            same = [True] * len(first)
        pairs = zip(first, labels, strict=True)
        same = [
            known and own.shape[1:] == each.shape[1:] and bool((each == own).all())
            for known, (own, each) in zip(same, pairs, strict=True)
        ]
        if not any(same):
            return ""
    which = [_value(label[0]) for label, alike in zip(first, same, strict=True) if alike]
    if not which or data.fingerprint["validation"]["examples"] < 2:
        return ""
    return (
        f"all {data.fingerprint['validation']['examples']:,} validation labels are the same "
        f"({'; '.join(which)}): what always answers that cannot be beaten; shuffle the examples "
        "before they are split"
    )


def _value(label: np.ndarray) -> str:
    """A label in a sentence; of one-hot labels the class."""
    if label.ndim == 1 and label.size > 1 and np.count_nonzero(label) == 1 and label.max() == 1:
        return f"class {int(label.argmax())}"
    if label.size == 1:
        return str(label.reshape(-1)[0])
    return f"of shape {label.shape}"


def _of_outputs(weights: Any, outputs: Outputs) -> tuple[np.ndarray | None, ...]:
    """The weights of each output; a single array of them counts for all outputs."""
    count = len(outputs.shapes)
    if weights is None:
        return (None,) * count
    flat = [np.asarray(each) for each in outputs.flat(weights)]
    return tuple(flat) if len(flat) == count else (flat[0],) * count


Answers = Sequence[np.ndarray]


class ConstantModel:
    """A model that gives the same answer to every example, compiled as the user's model is."""

    def __init__(self, compiled: Mapping[str, Any], outputs: Outputs, first: LabelPart) -> None:
        self._outputs = outputs
        # Traced, since some metrics take thirty times as long eagerly. The user's own may be of
        # Python, and a mask is not handed to a trace.
        self._updates: dict[str, Any] = {}
        with fresh_names(), tf.device("/CPU:0"):
            self._model = keras.Model(name="constant")
            if outputs.names:
                self._model.output_names = list(outputs.names)
            kinds = ("metrics", "weighted_metrics")
            own = {kind: copied_metric(compiled.get(kind)) for kind in kinds}
            losses = {name: compiled.get(name) for name in ("loss", "loss_weights")}
            self._model.compile(**losses, **own, jit_compile=False)
            self._loss: Any = None if compiled.get("loss") is None else self._loss_of(first)
            self.metrics = self._metrics_of(first) if any(own.values()) else {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of metrics and losses in Keras' logs."""
        if self._loss is None:
            return tuple(self.metrics)
        return (*self.metrics, LOSS, *(metric.name for metric in self._loss.metrics))

    def is_loss(self, name: str) -> bool:
        """Return whether a name is that of the loss, or of the loss of one output."""
        return name in self.names and name not in self.metrics

    def changes_in_steps(self, name: str) -> bool:
        """Return whether a metric is one of Keras' own that ranks or counts answers."""
        metric = self.metrics[name][0] if name in self.metrics else None
        of_keras = type(metric).__module__.startswith("keras.")
        return of_keras and snake_case(type(metric).__name__) in SHARES

    def places(self, name: str) -> list[int]:
        """Return the positions of the outputs that a metric or loss depends on."""
        if name in self.metrics:
            return [self.metrics[name][1]]
        own = [place for place, each in enumerate(self._outputs.names) if name == f"{each}_{LOSS}"]
        return own or list(range(len(self._outputs.shapes)))

    def value(self, name: str, answers: Answers, parts: Sequence[LabelPart]) -> float:
        """Return a metric or loss of constant answers."""
        with tf.device("/CPU:0"):
            if name in self.metrics:
                return self._metric(name, answers, parts)
            return self._mean_loss(name, answers, parts)

    def _metric(self, name: str, answers: Answers, parts: Sequence[LabelPart]) -> float:
        metric, place, weighted = self.metrics[name]
        metric.reset_state()
        update = metric.update_state
        if type(metric).__module__.startswith("keras.") and not any(
            each.masks[place] is not None for each in parts
        ):
            update = self._updates.setdefault(name, tf.function(update, reduce_retracing=True))
        for part in parts:
            given = [part.weights[place]] if weighted and part.weights[place] is not None else []
            prediction = self._prediction(answers[place], part, place)
            update(tf.constant(part.labels[place]), prediction, *map(_tensor, given))
        result = np.asarray(metric.result())
        metric.reset_state()
        if result.size != 1:
            raise ValueError(f"{name} is not one number")
        return float(result.reshape(()))

    def _mean_loss(self, name: str, answers: Answers, parts: Sequence[LabelPart]) -> float:
        """The mean over the examples of the loss of each batch, as `evaluate` gives it."""
        self._reset()
        total, examples = 0.0, 0
        for part in parts:
            total += float(self._call_loss(answers, part)) * part.examples
            examples += part.examples
        own = {metric.name: metric for metric in self._loss.metrics}
        return total / examples if name == LOSS else float(own[name].result())

    def _call_loss(self, answers: Answers, part: LabelPart) -> Any:
        predictions = [
            self._prediction(answer, part, place) for place, answer in enumerate(answers)
        ]
        weights = None
        if any(each is not None for each in part.weights):
            weights = self._outputs.packed([_tensor(each) for each in part.weights])
        labels = self._outputs.packed([_tensor(each) for each in part.labels])
        return self._loss(labels, self._outputs.packed(predictions), weights)

    def _loss_of(self, first: LabelPart) -> Any:
        self._loss = keras_private.compile_loss(self._model)
        self._call_loss(self._zeros(first), first)
        return self._loss

    def _metrics_of(self, first: LabelPart) -> dict[str, tuple[Any, int, bool]]:
        predictions = [
            self._prediction(answer, first, place)
            for place, answer in enumerate(self._zeros(first))
        ]
        labels = self._outputs.packed([_tensor(each) for each in first.labels])
        self._model.compute_metrics(None, labels, self._outputs.packed(predictions), None)
        found = keras_private.compiled_metrics(self._model)
        return {name: (metric, place, weighted) for name, metric, place, weighted in found}

    def _zeros(self, first: LabelPart) -> list[np.ndarray]:
        return [np.zeros(()) for _ in first.labels]

    def _reset(self) -> None:
        for metric in self._loss.metrics:
            metric.reset_state()

    def _prediction(self, answer: np.ndarray, part: LabelPart, place: int) -> Any:
        shape = shape_of(self._outputs.shapes[place], part.labels[place])
        prediction = tf.broadcast_to(tf.constant(answer, "float32"), (part.examples, *shape))
        if part.masks[place] is not None:
            keras_private.set_mask(prediction, _tensor(part.masks[place]))
        return prediction


def shape_of(shape: Sequence[int | None], labels: np.ndarray) -> tuple[int, ...]:
    """Return an output's shape for these labels, whose lengths stand for those that vary.

    Example:
    >>> shape_of((None, 5), np.zeros((8, 3)))
    (3, 5)
    """
    known = []
    for axis, length in enumerate(shape, start=1):
        if length is None and axis >= labels.ndim:
            raise ValueError(f"labels of shape {labels.shape} for outputs of shape {shape}")
        known.append(labels.shape[axis] if length is None else length)
    return tuple(known)


def _tensor(array: Any) -> Any:
    return None if array is None else tf.constant(array)
