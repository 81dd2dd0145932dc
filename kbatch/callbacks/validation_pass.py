"""Validation pass: an evaluation in mid-training that leaves no trace in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def measure(model: keras.Model, batches: tf.data.Dataset) -> dict[str, float]:
    """What the model reaches on the validation batches, such as `{"loss": 0.6, "accuracy": 0.7}`.

    `model.evaluate` resets the metrics that `fit` is still adding to, so they are put back.
    Weights, optimizer and seed generators are not touched by an evaluation.

    Args:
        model: Compiled model, possibly in the middle of `fit`.
        batches: Batches of `(x, y)` or `(x, y, sample_weight)`.
    """
    before = [variable.numpy() for variable in model.metrics_variables]
    values = model.evaluate(batches, verbose=0, return_dict=True)
    # metrics built by this evaluation come last
    for variable, value in zip(model.metrics_variables, before, strict=False):
        variable.assign(value)
    return numbers(values)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The measured values that are one number each; a metric of one value per class, such as `F1Score()`, is left out."""
    return {name: float(value) for name, value in values.items() if np.ndim(value) == 0}
