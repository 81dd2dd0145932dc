"""Finiteness: tells a training that is lost to NaN from a batch that overflowed and was skipped."""

from __future__ import annotations

import math
from collections.abc import Mapping

import keras
import tensorflow as tf

MOST_IN_A_ROW = 20  # loss scaling finds its scale within these: it halves at each, from 2^15 on


class Finiteness:
    """Watches the loss of each update.

    A loss that is not finite is no end by itself: loss scaling skips such an update. Training is
    lost once a weight is not finite, or once twenty updates in a row had no finite loss.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def lost(self, model: keras.Model, logs: Mapping[str, float] | None) -> bool:
        """Whether training is lost after an update with these logs.

        Args:
            model: Model in the middle of `fit`. Metrics that the update spoiled begin anew, since
                Keras' running means would stay NaN.
            logs: What Keras logs of the update.
        """
        if math.isfinite((logs or {}).get("loss", 0.0)):
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        if self._in_a_row >= MOST_IN_A_ROW or not weights_are_finite(model):
            return True
        for metric in model.metrics:
            if not _are_finite(metric.variables):
                metric.reset_state()
        return False


def weights_are_finite(model: keras.Model) -> bool:
    """Whether every trainable weight is a finite number."""
    return _are_finite(model.trainable_variables)


def _are_finite(variables: list[keras.Variable]) -> bool:
    numbers = [tf.convert_to_tensor(variable) for variable in variables]
    return all(
        bool(tf.reduce_all(tf.math.is_finite(number)))
        for number in numbers
        if number.dtype.is_floating
    )


def scaled_updates(model: keras.Model) -> int | None:
    """Weight updates made under loss scaling, without those that it skipped; `None` where nothing scales the loss."""
    return (
        int(model.optimizer.iterations)
        if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        else None
    )
