"""The validation pass: an evaluation during a training that does not change the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.runtime import keras_private


def measure(model: keras.Model, batches: tf.data.Dataset) -> dict[str, float]:
    """Evaluate the model on the validation batches.

    `model.evaluate` resets the metrics that `fit` is still adding to, so they are restored. An
    evaluation changes neither weights nor optimizer nor seed generators.

    Args:
        model: Compiled `keras.Model`, possibly in the middle of `fit`.
        batches: `tf.data.Dataset` of batches of `(x, y)` or `(x, y, sample_weight)`.

    Returns:
        Dict of metrics by name, such as `{"loss": 0.6, "accuracy": 0.7}`.
    """
    before = [variable.numpy() for variable in model.metrics_variables]
    values = evaluated(model, batches)
    # metrics that this evaluation has built come last
    for variable, value in zip(model.metrics_variables, before, strict=False):
        variable.assign(value)
    return numbers(values)


def evaluated(model: keras.Model, batches: tf.data.Dataset) -> dict[str, Any]:
    """Return what `model.evaluate` measures, also on several devices that share a batch unequally.

    Args:
        model: Compiled `keras.Model` that has been trained.
        batches: `tf.data.Dataset` of batches.
    """
    with keras_private.without_symbolic_build(model):
        return dict(model.evaluate(batches, verbose=0, return_dict=True))


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are one number, and leave out one-per-class metrics (`F1Score()`)."""
    return {name: float(value) for name, value in values.items() if np.ndim(value) == 0}
