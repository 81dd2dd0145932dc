"""The norm of the whole gradient, by which Keras clips: models whose gradient has none."""

from __future__ import annotations

from typing import Any

import keras

from kbatch.dtype_policy import FLOAT16
from kbatch.errors import ModelError
from kbatch.recipe import Recipe


def check(model: keras.Model, recipe: Recipe, optimizer: Any) -> None:
    """Refuse to clip the norm of gradients of several types, which Keras cannot add up.

    Args:
        model: `keras.Model`, as `build` returned it.
        recipe: `Recipe` of the training.
        optimizer: Optimizer that the model is or will be compiled with.

    Raises:
        ModelError: If the optimizer clips the whole gradient, and weights have several types. Loss
            scaling makes one type of them with policy="float16".
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    types = sorted({variable.dtype for variable in model.trainable_variables})
    if getattr(inner, "global_clipnorm", None) and len(types) > 1 and recipe.policy != FLOAT16:
        raise ModelError(
            "All weights must be of one type to clip the norm of the whole gradient",
            f"clip_norm={inner.global_clipnorm:g} and weights of {' and '.join(types)}",
            "Leave out clip_norm, or the dtype of the layers",
        )
