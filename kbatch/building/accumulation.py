"""Gradient accumulation: models for which several passes differ from the whole batch at once."""

from __future__ import annotations

from typing import Any

import keras

from kbatch.building import normalization
from kbatch.building.loss_counts import counts
from kbatch.building.optimizers import PerUpdate
from kbatch.errors import ModelError
from kbatch.recipe import Recipe
from kbatch.runtime import keras_private


def check(model: keras.Model, recipe: Recipe, loss: Any) -> None:
    """Refuse a model whose accumulated passes cannot equal the whole batch.

    Keras averages the gradients of the passes, so a loss must be a mean. If the mean is over a
    count that differs between passes, the passes are weighted by it (see
    `kbatch.building.pass_weights`).

    Args:
        model: `keras.Model`, as `build` returned it.
        recipe: `Recipe` of the training.
        loss: The loss argument of `compile`.

    Raises:
        ModelError: If the recipe accumulates, and the loss is a sum, or one of several losses whose
            counts differ between passes.
    """
    if recipe.accumulation_steps == 1 or recipe.is_exact:
        return
    for part in keras.tree.flatten(loss):
        reduction = getattr(part, "reduction", "sum_over_batch_size")
        if reduction in ("sum", "none", None):
            raise ModelError(
                "A loss that accumulates must be a mean over the batch: Keras averages the passes",
                f"{getattr(part, 'name', type(part).__name__)} with reduction={reduction!r}, "
                f"{_passes(recipe)}",
                "Leave out reduction=, and multiply the learning rate by the batch size "
                "if the sum was meant",
            )
    why = _unweighable(model, loss) if counts(model, loss) else ""
    if why:
        raise ModelError(
            "A loss that divides by a count of its own (a mask, ignore_class, "
            "mean_with_sample_weight) must be the model's only loss to accumulate",
            f"{model.name} with {why}, {_passes(recipe)}",
            "Take batch sizes that fit at once (no micro_batch_size, no max_batch)",
        )


def _unweighable(model: keras.Model, loss: Any) -> str:
    """Return why the passes of a model cannot be weighted by their counts; empty if they can."""
    if len(keras.tree.flatten(loss)) != 1 or len(getattr(model, "outputs", None) or [None]) != 1:
        return "several outputs"
    own_step = type(model).train_step is not keras.Model.train_step
    if own_step or type(model).compute_loss is not keras.Model.compute_loss:
        return "a train_step or compute_loss of its own"
    layers = keras_private.flatten_layers(model)
    if any(getattr(layer, "activity_regularizer", None) is not None for layer in layers):
        return "an activity regularizer"
    return "" if model.built else "an input shape that only the data tell"


def remarks(model: keras.Model, recipe: Recipe) -> tuple[str, ...]:
    """Return sentences for the user about the passes of a compiled model."""
    if not model.compiled:
        return ()
    said = list(normalization.remarks(model, recipe))
    if recipe.accumulation_steps == 1:
        return tuple(said)
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    rate = keras_private.learning_rate_setting(optimizer)
    if isinstance(rate, PerUpdate):
        said.append(
            f"the schedule {type(rate.schedule).__name__} counts updates through kbatch: "
            "a saved model loads where kbatch can be imported, or with compile=False"
        )
    return tuple(said)


def _passes(recipe: Recipe) -> str:
    return f"{recipe.accumulation_steps} passes of {recipe.micro_batch_size}"
