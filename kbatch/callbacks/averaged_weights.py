"""Averaged weights: the moving average of a model's trainable weights over its updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kbatch.runtime.keras_private import tensorflow_variable

SHORT = (tf.float16, tf.bfloat16)  # too few digits for an average


class AveragedWeights:
    """The moving average of a model's trainable weights, which begins with the present ones.

    Each update makes it `momentum * average + (1 - momentum) * weights`, as Keras' `use_ema` does.
    Statistics of batch normalization and the scales of float8 are not averaged.

    Args:
        model: Built `keras.Model`.
        momentum: Float between 0 and 1.

    Attributes:
        variables: List of `tf.Variable`, the averages.
    """

    def __init__(self, model: keras.Model, momentum: float) -> None:
        self._weights = [
            tensorflow_variable(weight)
            for weight in model.trainable_variables
            # scales of float8, which belong to the numbers of the latest updates
            if not getattr(weight, "overwrite_with_gradient", False)
        ]
        self._momentum = momentum
        self.variables = [tf.Variable(_long(weight), trainable=False) for weight in self._weights]
        self._update = tf.function(self._average, autograph=False)

    def update(self) -> None:
        """Take the weights of an update into the average."""
        self._update()

    def _average(self) -> None:
        for average, weight in zip(self.variables, self._weights, strict=True):
            average.assign_add((1 - self._momentum) * (_long(weight) - average))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the averaged weights inside the `with` block, and then its own again."""
        own = [tf.identity(weight) for weight in self._weights]
        self._assign(self.variables)
        try:
            yield
        finally:
            self._assign(own)

    def _assign(self, values: list[Any]) -> None:
        for weight, value in zip(self._weights, values, strict=True):
            weight.assign(tf.cast(value, weight.dtype))


def averages(model: keras.Model, momentum: float | None) -> list[tf.Variable]:
    """Return the variables of a model's moving average; none without a momentum."""
    return [] if momentum is None else AveragedWeights(model, momentum).variables


def _long(weight: Any) -> Any:
    tensor = tf.convert_to_tensor(weight)
    return tf.cast(tensor, tf.float32) if tensor.dtype in SHORT else tensor
