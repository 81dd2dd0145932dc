"""The method scope: a `with` block in which a model trains by the method of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from kbatch.building import method_checks
from kbatch.building.batch_gradient import BatchGradient
from kbatch.building.proximal import proximal_step
from kbatch.building.sam import sam_step
from kbatch.recipe import Recipe
from kbatch.runtime.keras_private import stepping
from kbatch.training_method import PLAIN, SAM


@contextmanager
def trained_by_method(model: keras.Model, recipe: Recipe) -> Iterator[None]:
    """Train a model by the recipe's method inside the `with` block.

    One train step of Keras then takes a whole batch: `recipe.examples_per_step` examples, which it
    goes through in passes of `recipe.examples_per_pass`. Enter it outside of the augmentation
    scope, so that a batch is augmented once and all passes over it see the same examples.

    Args:
        model: Compiled `keras.Model`.
        recipe: `Recipe` that the model is compiled for.

    Raises:
        ModelError: If the method cannot train the model.
    """
    method = recipe.method
    if method.name == PLAIN:
        yield
        return
    method_checks.check(model, recipe, model.optimizer)
    passes = 1 if recipe.is_exact else recipe.accumulation_steps
    gradient = BatchGradient(model, passes)
    if method.name == SAM:
        train_step = sam_step(model, gradient, method.amount)
    else:
        train_step = proximal_step(model, gradient, method.amount, method.inner_steps)
    with stepping(model, _once_built(model, train_step)):
        yield


def _once_built(
    model: keras.Model, train_step: Callable[[Any], dict[str, Any]]
) -> Callable[[Any], dict[str, Any]]:
    """Return a train step that first makes the variables which Keras would make in its course."""

    def step(batch: Any) -> dict[str, Any]:
        if not model.built:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            model(x, training=False)
        if not model.optimizer.built and model.trainable_variables:
            model.optimizer.build(model.trainable_variables)
        return train_step(batch)

    return step
