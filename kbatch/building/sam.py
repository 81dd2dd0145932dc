"""Sharpness-aware minimisation: a step by the gradient at the worst weights nearby."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kbatch.building import layer_state
from kbatch.building.batch_gradient import BatchGradient, Gradients


def sam_step(
    model: keras.Model, gradient: BatchGradient, radius: float
) -> Callable[[Any], dict[str, Any]]:
    """Return a train step of sharpness-aware minimisation (Foret et al. 2021).

    With the gradient `g` of the batch at the weights `w`, the optimizer applies the gradient at
    `w + radius * g / |g|` to `w`. The norm is that of the whole gradient, over all weights and the
    whole batch. Metrics are those at `w`. As in the authors' code, both gradients are of one
    function: dropout drops the same units in both. Moving statistics are those of the pass at `w`.

    Args:
        model: Compiled `keras.Model`.
        gradient: `BatchGradient` of the model.
        radius: Float, length of the step to the worst weights nearby.
    """

    def train_step(batch: Any) -> dict[str, Any]:
        variables = model.trainable_variables
        entered = layer_state.of_layers(model)
        ascent, metrics = gradient(batch)
        if not variables:
            return metrics
        left = layer_state.of_layers(model) + layer_state.of_metrics(model)
        weights = layer_state.values(variables)
        layer_state.put_back(entered)
        for (variable, value), offset in zip(weights, _offsets(ascent, radius), strict=True):
            if offset is not None:
                variable.assign(value + tf.cast(offset, value.dtype))
        gradients, _ = gradient(batch)
        layer_state.put_back(weights + left)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return metrics

    return train_step


def _offsets(gradients: Gradients, radius: float) -> Gradients:
    """Return the gradients scaled to a norm; zeros if that norm is zero or not finite."""
    known = [gradient for gradient in gradients if gradient is not None]
    if not known:
        return gradients
    # one type for all, which can hold their squares
    wide = tf.float64 if any(each.dtype == tf.float64 for each in known) else tf.float32
    norm = tf.linalg.global_norm([tf.cast(gradient, wide) for gradient in known])
    factor = tf.math.divide_no_nan(tf.constant(radius, wide), norm)
    finite = tf.math.is_finite(norm)

    def offset(gradient: tf.Tensor) -> tf.Tensor:
        scaled = tf.cast(gradient, wide) * factor
        return tf.where(finite, scaled, tf.zeros_like(scaled))

    return [None if gradient is None else offset(gradient) for gradient in gradients]
