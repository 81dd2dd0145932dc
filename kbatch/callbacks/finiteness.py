"""Finiteness: the difference between a training lost to NaN and one overflowing batch."""

from __future__ import annotations

import math
from collections.abc import Mapping

import keras
import tensorflow as tf

# Loss scaling finds its scale within these: it halves the scale at each, from 2^15 on
# (keras/src/optimizers/loss_scale_optimizer.py, Keras 3.15.1).
MOST_IN_A_ROW = 20


class Finiteness:
    """A watch on the loss of each update.

    One loss that is not finite does not end a training, since loss scaling skips such an update.
    Training is lost once a weight is not finite, or after twenty updates in a row without a finite
    loss.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def lost(self, model: keras.Model, logs: Mapping[str, float] | None) -> bool:
        """Tell whether the training is lost after an update.

        Args:
            model: `keras.Model` in the middle of `fit`. Metrics that are not finite are reset,
                since Keras' running means would stay NaN.
            logs: Dict, Keras' logs of the update.
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
    """Tell whether every trainable weight is finite."""
    return _are_finite(model.trainable_variables)


def _are_finite(variables: list[keras.Variable]) -> bool:
    numbers = [tf.convert_to_tensor(variable) for variable in variables]
    return all(
        bool(tf.reduce_all(tf.math.is_finite(number)))
        for number in numbers
        if number.dtype.is_floating
    )


def scaled_updates(model: keras.Model) -> int | None:
    """Count the weight updates that loss scaling did not skip; `None` without loss scaling."""
    if not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        return None
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))
