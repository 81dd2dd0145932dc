"""Layer state: what a model's layers keep besides weights, such as moving statistics and seeds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from kbatch.runtime import keras_private

Values = list[tuple[Any, tf.Tensor]]


def of_layers(model: keras.Model) -> Values:
    """Return each variable of a model that is no weight, with its value; frozen weights are none.

    Args:
        model: `keras.Model`, built.
    """
    weights = {
        id(variable)
        for layer in keras_private.flatten_layers(model)
        for variable in keras_private.own_trainable_variables(layer)
    }
    return values(variable for variable in model.variables if id(variable) not in weights)


def but_seeds(model: keras.Model) -> Values:
    """Return each variable of a model with its value, but those of random draws.

    Args:
        model: `keras.Model`, built.
    """
    return values(each for each in model.variables if "seed_generator" not in each.path)


def of_metrics(model: keras.Model) -> Values:
    """Return each variable of a model's metrics with its value.

    Args:
        model: `keras.Model`, compiled and called.
    """
    return values(variable for metric in model.metrics for variable in metric.variables)


def values(variables: Iterable[Any]) -> Values:
    """Return variables with their values now."""
    return [(variable, tf.convert_to_tensor(variable)) for variable in variables]


def put_back(values: Values) -> None:
    """Give variables the values that they had."""
    for variable, value in values:
        variable.assign(value)
