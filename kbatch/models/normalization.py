"""Normalization: groups in place of batches."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

from kbatch.errors import ModelError
from kbatch.recipe import Recipe
from kbatch.rules import batch_schedule
from kbatch.runtime import device, keras_private

MOST_GROUPS = 32  # Wu & He 2018, https://arxiv.org/abs/1803.08494
# Wu & He also name 16 channels a group. Groups of one number would be normalized to zero.
LEAST_VALUES = 16
FEWEST_EXAMPLES = 16  # that statistics of a batch should be of; Wu & He 2018, figure 1
KEPT = (
    *("axis", "epsilon", "center", "scale", "beta_initializer", "gamma_initializer"),
    *("beta_regularizer", "gamma_regularizer", "beta_constraint", "gamma_constraint"),
)
Batch = keras.layers.BatchNormalization


def normalized(model: keras.Model, recipe: Recipe) -> keras.Model:
    """Return the model with the normalization of a recipe.

    On several devices, the statistics of `BatchNormalization` become those of the whole pass. With
    `normalization="group"`, a new model is returned: it holds the same layers but for each
    `BatchNormalization`, and is compiled with the same arguments.
    """
    found = batch_layers(model)
    if recipe.normalization == "group":
        return _grouped(model, found)
    if device.replicas() > 1:
        for layer in found:
            layer.synchronized = True
    return model


def batch_layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Return the `BatchNormalization` layers of a model, also those inside of other layers."""
    layers = keras_private.flatten_layers(model)
    return list({id(each): each for each in layers if isinstance(each, Batch)}.values())


def remarks(model: keras.Model, recipe: Recipe) -> tuple[str, ...]:
    """Return sentences for the user about batch statistics of other examples than the batch."""
    if not any(layer.trainable for layer in batch_layers(model)):
        return ()
    said = []
    smallest = batch_schedule.first_pass(
        recipe.batch_size, recipe.growth.factor, recipe.accumulation_steps
    )
    if recipe.accumulation_steps > 1:
        said.append(
            f"batch normalization sees passes of {recipe.micro_batch_size}, "
            f"not the batch of {recipe.batch_size}: "
            "its statistics, and so this training, are not those of the whole batch at once"
        )
    if smallest < FEWEST_EXAMPLES:
        said.append(
            f"batch normalization has statistics of {smallest} examples, and those "
            f"of fewer than {FEWEST_EXAMPLES} are noisy (Wu & He 2018): "
            'Space(normalization=("batch", "group")) searches group normalization too'
        )
    return tuple(said)


def groups_of(channels: int, positions: float) -> int:
    """Return the number of groups: the largest divisor of the channels up to 32.

    A group holds at least 16 numbers of an example, or is all of them.

    Args:
        channels: Integer, number of channels.
        positions: Number of positions that each channel has in an example, such as the pixels.

    Example:
    >>> groups_of(64, 8 * 8), groups_of(48, 8 * 8), groups_of(64, 1), groups_of(10, 1)
    (32, 24, 4, 1)
    """
    fitting = [
        groups
        for groups in range(1, min(channels, MOST_GROUPS) + 1)
        if channels % groups == 0 and channels // groups * positions >= LEAST_VALUES
    ]
    return max(fitting, default=1)


def _grouped(model: keras.Model, found: list[Any]) -> keras.Model:
    if not found:
        raise ModelError(
            'With normalization="group" the model must have a BatchNormalization to replace',
            f"{model.name} without one",
            'Leave normalization="group" out of the space',
        )
    if not isinstance(model, (keras.Sequential, keras_private.functional_class())):
        raise _unreachable(model, model.name)
    for layer in found:
        _check(model, layer)
    replaced: dict[int, Any] = {}
    clone = _clone(model, replaced)
    left = [layer.name for layer in found if id(layer) not in replaced]
    if left:
        raise _unreachable(model, ", ".join(left))
    for layer in found:
        for name in ("gamma", "beta"):
            value = getattr(layer, name, None)
            if value is not None:
                getattr(replaced[id(layer)], name).assign(value)
    if model.compiled:
        # Keras does not store auto_scale_loss: the class of the optimizer is the only trace of it
        scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        clone.compile(**keras_private.compile_arguments(model), auto_scale_loss=scaled)
    return clone


def _clone(model: Any, replaced: dict[int, Any]) -> Any:
    """A model of the same layers, but for batch normalization and for models that hold it."""

    def clone_function(layer: Any) -> Any:
        if id(layer) in replaced:
            return replaced[id(layer)]
        if isinstance(layer, Batch):
            replaced[id(layer)] = _group(layer)
        elif isinstance(layer, keras.Model) and batch_layers(layer):
            replaced[id(layer)] = _clone(layer, replaced)
        return replaced.get(id(layer), layer)

    functional = isinstance(model, keras_private.functional_class())
    if not functional and not isinstance(model, keras.Sequential):
        raise _unreachable(model, model.name)
    compiled, model.compiled = model.compiled, False  # Keras would compile the clone from JSON
    try:
        clone = keras.models.clone_model(
            model, clone_function=clone_function, call_function=_called if functional else None
        )
    finally:
        model.compiled = compiled
    if type(clone) is not type(model):
        raise _unreachable(model, model.name)
    clone.trainable = model.trainable
    return clone


def _called(layer: Any, *arguments: Any, **named: Any) -> Any:
    """The output of a layer in the clone; group normalization takes no mask."""
    if isinstance(layer, keras.layers.GroupNormalization):
        masks = (named.pop("mask", None), keras_private.mask_of(arguments[0]))
        if any(mask is not None for mask in masks):
            raise ModelError(
                'With normalization="group" no BatchNormalization may have a mask',
                f"{layer.name}, whose input has one",
                'Leave normalization="group" out of the space',
            )
        named.pop("training", None)
    return layer(*arguments, **named)


def _group(layer: keras.layers.BatchNormalization) -> keras.layers.GroupNormalization:
    """Group normalization in the place of a layer, with its name."""
    shape = tuple(layer.get_build_config()["input_shape"])
    axis = layer.axis if layer.axis >= 0 else len(shape) + layer.axis
    others = [size for place, size in enumerate(shape) if place not in (0, axis)]
    positions = math.prod(math.inf if size is None else size for size in others)
    if shape[axis] * positions < 2:
        raise ModelError(
            "Group normalization must have several numbers of an example to normalize",
            f"{layer.name} of one number",
            'Leave normalization="group" out of the space',
        )
    return keras.layers.GroupNormalization(
        groups_of(shape[axis], positions),
        **{name: getattr(layer, name) for name in KEPT},
        name=layer.name,
        dtype=layer.dtype_policy,
    )


def _check(model: keras.Model, layer: keras.layers.BatchNormalization) -> None:
    """Refuse a layer that was trained before: its statistics have no place in another layer."""
    do = 'Leave normalization="group" out of the space'
    if not layer.built:
        raise ModelError(
            'With normalization="group" the model must know its input shape',
            f"{model.name}, which is not built",
            "Begin the model with keras.Input",
        )
    if not layer.trainable:
        raise ModelError(
            'With normalization="group" each BatchNormalization must be trainable',
            f"{layer.name}, which is frozen",
            do,
        )
    moving = (np.asarray(layer.moving_mean), np.asarray(layer.moving_variance))
    if np.any(moving[0] != 0) or np.any(moving[1] != 1):
        raise ModelError(
            'With normalization="group" each BatchNormalization must be new',
            f"{layer.name}, whose moving statistics are of an earlier training",
            do,
        )


def _unreachable(model: keras.Model, name: str) -> ModelError:
    return ModelError(
        'With normalization="group" the model must be a Sequential or functional one, '
        "and each BatchNormalization a layer of it",
        f"{name} ({type(model).__name__})",
        'Leave normalization="group" out of the space, or build the model of layers',
    )
