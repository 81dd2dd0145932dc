"""Proximal training: several steps on each batch, held back to where the batch began."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kbatch.building import layer_state
from kbatch.building.batch_gradient import BatchGradient


def proximal_step(
    model: keras.Model, gradient: BatchGradient, penalty: float, steps: int
) -> Callable[[Any], dict[str, Any]]:
    """Return a train step of the proximal mini-batch method (Li et al., KDD 2014).

    With the weights `s` at which a batch begins, the optimizer takes several steps on that batch
    down `loss(w) + penalty / 2 * |w - s|^2`. Metrics and moving statistics are those of the first
    pass, at `s`, and dropout drops the same units in all steps.

    Args:
        model: Compiled `keras.Model`.
        gradient: `BatchGradient` of the model.
        penalty: Float, weight of the squared distance from where a batch began.
        steps: Integer, steps of the optimizer on each batch.
    """

    def train_step(batch: Any) -> dict[str, Any]:
        variables = model.trainable_variables
        entered = layer_state.of_layers(model)
        start = layer_state.values(variables)
        gradients, metrics = gradient(batch)
        if not variables:
            return metrics
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        left = layer_state.of_layers(model) + layer_state.of_metrics(model)

        def step(taken: tf.Tensor) -> tuple[tf.Tensor]:
            layer_state.put_back(entered)
            gradients, _ = gradient(batch)
            pull = model.optimizer.scale_loss(tf.constant(penalty))
            pulled = [
                None if slope is None else slope + _times(pull, variable - value)
                for slope, (variable, value) in zip(gradients, start, strict=True)
            ]
            model.optimizer.apply_gradients(zip(pulled, variables, strict=True))
            return (taken + 1,)

        tf.while_loop(lambda taken: taken < steps, step, (tf.constant(1),), parallel_iterations=1)
        layer_state.put_back(left)
        return metrics

    return train_step


def _times(factor: tf.Tensor, distance: Any) -> tf.Tensor:
    distance = tf.convert_to_tensor(distance)
    return tf.cast(factor, distance.dtype) * distance
