"""Loss: the bytes that a model's compiled loss takes on top of the model's outputs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from kbatch.runtime.liveness import moments
from kbatch.runtime.trace import PRIME, Size


def loss_bytes(model: keras.Model, outputs: Sequence[tf.TensorSpec]) -> Size:
    """Bytes of the loss and its gradient, traced on outputs of these shapes; nothing is executed.

    Labels have the shape of the outputs, or one dimension less where a loss is sparse. `0` for a
    model without a loss for each output, and for a loss that cannot be called on such labels.
    """
    losses = _losses(model)
    if not losses or len(losses) != len(outputs):
        return Size()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training gives the same ones
            found = _traced(losses, outputs)
    except Exception:  # whatever a user's loss raises: its bytes are a part of a prediction only
        return Size()
    return max(found, key=lambda size: size.at(PRIME))


def _losses(model: keras.Model) -> list[Any]:
    """The losses of the model's outputs in order."""
    given = getattr(model, "loss", None)
    if isinstance(given, dict):
        given = [given.get(name) for name in model.output_names]
    listed = given if isinstance(given, list | tuple) else [given]
    return [each for each in listed if each is not None]


def _traced(losses: Sequence[Any], outputs: Sequence[tf.TensorSpec]) -> list[Size]:
    """The bytes of the moments that are the losses' peak at some batch size."""

    def step(*values: tf.Tensor) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            total = sum(
                tf.reduce_mean(keras.losses.get(loss)(_labels(loss, value), value))
                for loss, value in zip(losses, values, strict=True)
            )
        return tape.gradient(total, list(values))

    graph = tf.function(step).get_concrete_function(*outputs).graph
    return [moment.total for moment in moments(graph)]


def _labels(loss: Any, outputs: tf.Tensor) -> tf.Tensor:
    """A placeholder for the labels that a loss takes for such outputs."""
    name = getattr(loss, "name", None) or getattr(loss, "__name__", None) or str(loss)
    if "sparse" in name:
        return tf.compat.v1.placeholder(tf.int32, outputs.shape[:-1])
    return tf.compat.v1.placeholder(outputs.dtype, outputs.shape)
