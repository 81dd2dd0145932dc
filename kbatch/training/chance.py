"""Chance: what a model that learned nothing reaches, found only where it is certain."""

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

LABELS = 10_000  # at most so many training labels decide on the best constant answer
BATCH = 256
HOW = "Pass chance=, what the best constant answer reaches on the validation data"


class Constant(keras.Model):
    """A model that answers the same whatever it is asked."""

    def __init__(self, answer: np.ndarray) -> None:
        super().__init__(name="constant")
        self._answer = answer

    def call(self, x: Any) -> Any:
        """The same answer for each example."""
        examples = tf.shape(keras.tree.flatten(x)[0])[0]
        return tf.broadcast_to(
            tf.constant(self._answer, "float32"), (examples, *self._answer.shape)
        )


def chance_of(name: str, direction: str, data: Data, measured: Measured) -> tuple[float, str]:
    """Chance for a metric, and a sentence on where it is from if that is not plain.

    Args:
        name: String, the metric in Keras' logs, without `val_`.
        direction: `"max"` or `"min"`.
        data: What is trained and measured on.
        measured: What the model measures.

    Returns:
        A tuple of chance and the sentence, which may be empty: for accuracies the share of the most
        frequent class in the validation labels, weighted if the metric is; for the area under the
        ROC curve 0.5; for errors and losses that are errors what the better of the training labels'
        mean and median reaches on the validation data.

    Raises:
        SearchError: If chance is not certain.
    """
    _, place, bare = measured.split(name)
    if bare != metrics.LOSS and measured.part(bare) is None and measured.names:
        listed = ", ".join(f"val_{each}" for each in measured.names)
        raise SearchError(
            f"`metric` must be one that the model is compiled with ({listed}), or come with chance=",
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
            _what(name, measured),
            HOW,
        )
    return _of_the_best_constant(bare, direction, data, measured)


def most_frequent_share(labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    """The share of the most frequent class: what always answering it reaches.

    Args:
        labels: Array of shape `(n,)` or `(n, 1)` of class numbers, or `(n, classes)` one-hot.
        weights: Array of `n` weights of the examples. Optional.

    Raises:
        SearchError: If the labels are not those of one class per example.

    Example:
    >>> most_frequent_share(np.array([0, 1, 1, 1])), most_frequent_share(np.array([0, 1, 1, 1]), np.array([9, 1, 1, 1]))
    (0.75, 0.75)
    """
    classes = (
        labels.argmax(axis=1)
        if labels.ndim == 2 and labels.shape[1] > 1
        else labels.reshape(len(labels), -1)
    )
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
    counts = np.bincount(
        which.reshape(-1), None if weights is None else weights.reshape(-1).astype("float64")
    )
    return float(counts.max() / counts.sum())


def _what(name: str, measured: Measured) -> str:
    outputs = (
        f" of {len(measured.outputs)} outputs ({', '.join(measured.outputs)})"
        if len(measured.outputs) > 1
        else ""
    )
    return f"{name}{outputs}"


def _validation_labels(
    data: Data, measured: Measured, place: int, *, weighted: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """The labels of one output, and the weights of the examples if they count."""
    labels, weights = [], []
    for batch in data.validation:
        labels.append(np.asarray(_of_output(batch[1], measured, place)))
        if weighted and len(batch) > 2:
            weights.append(
                np.asarray(
                    _of_output(batch[2], measured, place)
                    if len(keras.tree.flatten(batch[2])) > 1
                    else _only(batch[2])
                )
            )
    return np.concatenate(labels), np.concatenate(weights) if weights else None


def _only(structure: Any) -> Any:
    return keras.tree.flatten(structure)[0]


def _of_output(structure: Any, measured: Measured, place: int) -> Any:
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
    """Labels of one pass over the training data, or of its first examples, in the order of seed 0."""
    wanted = min(data.training.examples, LABELS)
    size = min(wanted, BATCH)
    batches = data.training.stream(size, 0).take(math.ceil(wanted / size))
    return np.concatenate([np.asarray(_only(batch[1])) for batch in batches])[:wanted].astype(
        "float64"
    )


def _of_the_best_constant(
    bare: str, direction: str, data: Data, measured: Measured
) -> tuple[float, str]:
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
        reached[how] = _measured(bare, np.reshape(answer, shape), data, measured)
    how = (max if direction == "max" else min)(reached, key=lambda each: reached[each])
    if not math.isfinite(reached[how]):
        raise SearchError(
            "Chance must be a finite number",
            f"{reached[how]} for the {how} of the training labels",
            HOW,
        )
    note = f"chance is {reached[how]:.4g}: what always answering the {how} of {len(labels)} training labels reaches on the validation data"
    return reached[how], note


def _measured(bare: str, answer: np.ndarray, data: Data, measured: Measured) -> float:
    """What a constant answer reaches, measured by the model's own loss or metric."""
    model = Constant(answer)
    if bare == metrics.LOSS:
        model.compile(loss=measured.loss, jit_compile=False)
    else:
        kind = "weighted_metrics" if measured.is_weighted(bare) else "metrics"
        arguments: dict[str, Any] = {kind: [copy.deepcopy(measured.part(bare))]}
        model.compile(loss="mean_squared_error", jit_compile=False, **arguments)
    values = model.evaluate(data.validation, verbose=0, return_dict=True)
    return float(
        next(
            value
            for name, value in values.items()
            if (name == metrics.LOSS) == (bare == metrics.LOSS)
        )
    )
