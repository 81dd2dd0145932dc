"""Chance: the metric of a model that learned nothing, inferred only where it is certain."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data.batches import Data
from kbatch.errors import SearchError
from kbatch.training import metrics
from kbatch.training.metrics import Measured

LABELS = 10_000  # training labels, at most, that decide on the best constant answer
BATCH = 256
HOW = "Pass chance=, the metric of the best constant answer on the validation data"


class Constant(keras.Model):
    """A model that gives the same answer to every example."""

    def __init__(self, answer: np.ndarray) -> None:
        super().__init__(name="constant")
        self._answer = answer

    def call(self, x: Any) -> Any:
        """Return the same answer for each example."""
        examples = tf.shape(keras.tree.flatten(x)[0])[0]
        return tf.broadcast_to(
            tf.constant(self._answer, "float32"), (examples, *self._answer.shape)
        )


def chance_of(name: str, direction: str, data: Data, measured: Measured) -> tuple[float, str]:
    """Infer chance for a metric, and say how if that is not plain.

    For accuracies it is the share of the most frequent class in the validation labels, weighted if
    the metric is. For the area under the ROC curve it is 0.5. For errors, and losses that are
    errors, a constant answer is measured on the validation data: the better of the training labels'
    mean and median.

    Args:
        name: String, the metric in Keras' logs, without `val_`.
        direction: `"max"` or `"min"`.
        data: Training and validation data.
        measured: The metrics and losses of the model.

    Returns:
        A tuple of chance and a sentence, which may be empty.

    Raises:
        SearchError: If chance is not certain.
    """
    _, place, bare = measured.split(name)
    if bare != metrics.LOSS and measured.part(bare) is None and measured.names:
        listed = ", ".join(f"val_{each}" for each in measured.names)
        raise SearchError(
            f"`metric` must be one of the model's metrics ({listed}), or come with chance=",
            f"val_{name}",
            "Pass one of these",
        )
    known = metrics.exactly(bare)
    if known in metrics.ACCURACIES:
        labels, weights = _validation_labels(
            data, measured, place, weighted=measured.is_weighted(bare)
        )
        if known == metrics.BINARY and labels.ndim > 1 and labels.shape[-1] > 1:
            raise SearchError(
                "Chance of binary_accuracy can be inferred for one column of labels",
                f"labels of shape {labels.shape}",
                HOW,
            )
        return most_frequent_share(labels, weights), ""
    if known == metrics.AUC:
        if measured.curve_of(bare) != "ROC":
            raise SearchError(
                "Chance can be inferred for the area under the ROC curve",
                f"{bare} of the {measured.curve_of(bare)} curve",
                HOW,
            )
        return 0.5, ""
    error = measured.known_loss() if bare == metrics.LOSS else known
    if error not in metrics.ERRORS or len(measured.outputs) > 1:
        raise SearchError(
            "Chance can be inferred for accuracies, AUC, and the errors of one output",
            _metric_words(name, measured),
            HOW,
        )
    return _chance_of_constant(bare, direction, data, measured)


def most_frequent_share(labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the share of the most frequent class, the accuracy of always answering it.

    Args:
        labels: Array of shape `(n,)` or `(n, 1)` of class numbers, or `(n, classes)` one-hot.
        weights: Array of `n` weights of the examples. Optional.

    Raises:
        SearchError: If the labels are not those of one class per example.

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


def _metric_words(name: str, measured: Measured) -> str:
    if len(measured.outputs) <= 1:
        return name
    return f"{name} of {len(measured.outputs)} outputs ({', '.join(measured.outputs)})"


def _validation_labels(
    data: Data, measured: Measured, place: int, *, weighted: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """The labels of one output, and the weights of the examples if they count."""
    labels, weights = [], []
    for batch in data.validation:
        labels.append(np.asarray(_of_output(batch[1], measured, place)))
        if weighted and len(batch) > 2:
            weights.append(np.asarray(_weights_of_output(batch[2], measured, place)))
    return np.concatenate(labels), np.concatenate(weights) if weights else None


def _weights_of_output(weights: Any, measured: Measured, place: int) -> Any:
    """The weights of one output; a single array of them counts for all outputs."""
    if len(keras.tree.flatten(weights)) > 1:
        return _of_output(weights, measured, place)
    return _first(weights)


def _first(structure: Any) -> Any:
    return keras.tree.flatten(structure)[0]


def _of_output(structure: Any, measured: Measured, place: int) -> Any:
    """The array of one output, out of a dictionary by names or a structure in their order."""
    flat = keras.tree.flatten(structure)
    if len(flat) != max(len(measured.outputs), 1):
        raise SearchError(
            "Chance can be inferred for one array of labels per output",
            f"{len(flat)} for {len(measured.outputs)} outputs",
            HOW,
        )
    if isinstance(structure, Mapping) and set(structure) == set(measured.outputs):
        return structure[measured.outputs[place]]
    return flat[place]


def _training_labels(data: Data) -> np.ndarray:
    """The first labels of the training data in the order of seed 0, all of them if few."""
    count = min(data.training.examples, LABELS)
    size = min(count, BATCH)
    batches = data.training.stream(size, 0).take(math.ceil(count / size))
    labels = np.concatenate([np.asarray(_first(batch[1])) for batch in batches])
    return labels[:count].astype("float64")


def _chance_of_constant(
    bare: str, direction: str, data: Data, measured: Measured
) -> tuple[float, str]:
    """The metric of the best constant answer, and a sentence that says so."""
    labels = _training_labels(data)
    shape = measured.output_shapes[0][1:] if measured.output_shapes else labels.shape[1:] or (1,)
    reached = {}
    for how, answer in (("mean", labels.mean(axis=0)), ("median", np.median(labels, axis=0))):
        if answer.size != math.prod(side or 0 for side in shape):
            raise SearchError(
                "Chance can be inferred for labels of the output's shape",
                f"labels {answer.shape}, output {shape}",
                HOW,
            )
        reached[how] = _metric_of(np.reshape(answer, shape), bare, data, measured)
    best = max if direction == "max" else min
    how = best(reached, key=lambda each: reached[each])
    if not math.isfinite(reached[how]):
        raise SearchError(
            "Chance must be a finite number",
            f"{reached[how]} for the {how} of the training labels",
            HOW,
        )
    note = (
        f"chance is {reached[how]:.4g}: what always answering the {how} of {len(labels)} training "
        "labels reaches on the validation data"
    )
    return reached[how], note


def _metric_of(answer: np.ndarray, bare: str, data: Data, measured: Measured) -> float:
    """The model's own loss or metric of a constant answer."""
    model = Constant(answer)
    if bare == metrics.LOSS:
        model.compile(loss=measured.loss, jit_compile=False)
    else:
        kind = "weighted_metrics" if measured.is_weighted(bare) else "metrics"
        arguments: dict[str, Any] = {kind: [copy.deepcopy(measured.part(bare))]}
        model.compile(loss="mean_squared_error", jit_compile=False, **arguments)
    values = model.evaluate(data.validation, verbose=0, return_dict=True)
    if bare == metrics.LOSS:
        return float(values[metrics.LOSS])
    return float(next(value for name, value in values.items() if name != metrics.LOSS))
