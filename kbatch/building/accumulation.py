"""Accumulation: where several passes per update are not the whole batch at once, refused or said."""

from __future__ import annotations

from typing import Any

import keras

from kbatch.building.optimizers import PerUpdate
from kbatch.errors import ModelError
from kbatch.recipe import Recipe

DO = "Take batch sizes that fit at once (no micro_batch_size, no max_batch)"


def check(model: keras.Model, recipe: Recipe, loss: Any) -> None:
    """Refuse a model whose passes, averaged, are not the whole batch.

    Keras averages the gradients of the passes, so that a loss must be a mean over as many values in each of them.

    Args:
        model: `keras.Model`, as `build` returned it.
        recipe: `Recipe` to follow.
        loss: What it is compiled with.

    Raises:
        ModelError: If the recipe accumulates and the loss is a sum, or divides by a count of its own.
    """
    if recipe.accumulation_steps == 1:
        return
    for part in keras.tree.flatten(loss):
        _check_loss(part, recipe)
    if any(getattr(output, "_keras_mask", None) is not None for output in getattr(model, "outputs", None) or []):
        raise ModelError(
            "A model that accumulates must not mask its output: each pass would divide its loss by a count of its own",
            f"{model.name} with a masked output, {_passes(recipe)}",
            f"{DO}, or leave out mask_zero and weigh the steps with sample_weight",
        )


def remarks(model: keras.Model, recipe: Recipe) -> tuple[str, ...]:
    """What is worth knowing of a compiled model that accumulates."""
    if recipe.accumulation_steps == 1 or not model.compiled:
        return ()
    said = []
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable]
    if layers:
        said.append(
            f"batch normalization sees passes of {recipe.micro_batch_size}, not the batch of {recipe.batch_size}: "
            "its statistics, and so this training, are not those of the whole batch at once"
        )
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if isinstance(optimizer._learning_rate, PerUpdate):
        name = type(optimizer._learning_rate.schedule).__name__
        said.append(f"the schedule {name} counts updates through kbatch: a saved model loads where kbatch can be imported, or with compile=False")
    return tuple(said)


def _check_loss(loss: Any, recipe: Recipe) -> None:
    name = getattr(loss, "name", type(loss).__name__)
    if getattr(loss, "ignore_class", None) is not None:
        raise ModelError(
            "A loss that accumulates must not ignore a class: each pass would divide by a count of its own",
            f"{name} with ignore_class={loss.ignore_class}, {_passes(recipe)}",
            f"{DO}, or weigh the examples with sample_weight",
        )
    reduction = getattr(loss, "reduction", "sum_over_batch_size")
    if reduction in ("sum", "none", None):
        raise ModelError(
            "A loss that accumulates must be a mean over the batch: Keras averages the passes",
            f"{name} with reduction={reduction!r}, {_passes(recipe)}",
            "Leave out reduction=, and multiply the learning rate by the batch size if the sum was meant",
        )
    if reduction == "mean_with_sample_weight":
        raise ModelError(
            "A loss that accumulates must divide by the number of examples, not by their weights",
            f"{name} with reduction={reduction!r}, {_passes(recipe)}",
            f"{DO}, or leave out reduction=",
        )


def _passes(recipe: Recipe) -> str:
    return f"{recipe.accumulation_steps} passes of {recipe.micro_batch_size}"
