"""Refusals of SAM and proximal training: models that they cannot train."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from kbatch.errors import ModelError
from kbatch.recipe import Recipe
from kbatch.runtime import keras_private
from kbatch.training_method import PLAIN, PROXIMAL


def check(model: keras.Model, recipe: Recipe, optimizer: Any) -> None:
    """Refuse a model that a recipe's training method cannot train.

    Args:
        model: `keras.Model`, as `build` returned it.
        recipe: `Recipe` of the training.
        optimizer: Optimizer that the model is or will be compiled with.

    Raises:
        ModelError: If the method is not plain, and the model has a `train_step` of its own, a
            distribution strategy or weights in float8, or its optimizer accumulates by itself or
            has a schedule that would count inner steps.
    """
    if recipe.method.name == PLAIN:
        return
    method = f"training={recipe.training!r}"
    _check_model(model, method)
    _check_optimizer(getattr(optimizer, "inner_optimizer", optimizer), recipe, method)


def _check_model(model: keras.Model, method: str) -> None:
    if type(model).train_step is not keras.Model.train_step:
        raise ModelError(
            f"A model must have Keras' own train_step for {method}, which goes through a batch "
            "several times",
            f"{type(model).__name__}.train_step",
            'Override compute_loss instead, or take training="plain"',
        )
    if tf.distribute.has_strategy():
        raise ModelError(
            f"A model must train on one device for {method}",
            type(tf.distribute.get_strategy()).__name__,
            'Take training="plain", or do without the strategy',
        )
    if any(getattr(each, "overwrite_with_gradient", False) for each in model.trainable_variables):
        raise ModelError(
            f"All gradients must be gradients for {method}, which adds them to weights",
            f"{model.name} with scales of float8, whose gradients are their next values",
            'Take another policy, or training="plain"',
        )


def _check_optimizer(optimizer: Any, recipe: Recipe, method: str) -> None:
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise ModelError(
            f"An optimizer must not accumulate by itself for {method}, which takes whole batches",
            f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}",
            "Leave it out, and pass micro_batch_size or max_batch",
        )
    if recipe.method.name == PROXIMAL and keras_private.has_schedule(optimizer):
        raise ModelError(
            f"An optimizer must have no schedule for {method}, whose inner steps it would count "
            "as updates",
            type(keras_private.learning_rate_setting(optimizer)).__name__,
            "Compile the model with a constant rate, or name an optimizer in the recipe",
        )
