"""Normalization: groups in place of batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from kbatch.errors import ModelError
from kbatch.recipe import Recipe
from kbatch.rules import batch_schedule
from kbatch.runtime import device, keras_private
from kbatch.runtime.keras_private import flatten_layers

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


def batch_layers(model: Any) -> list[Any]:
    """Return the `BatchNormalization` layers of a model, also those inside of other layers."""
    layers = flatten_layers(model)
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


def group_normalized(model: Any, made: dict[int, Any]) -> Any:
    """Return the model with group normalization in the place of batch normalization.

    It is a Sequential or functional model. All other layers stay the same objects, but for models
    that hold batch normalization. `made` gets what was made of each layer, by its id.
    """

    def replaced(layer: Any) -> Any:
        if id(layer) not in made:
            if isinstance(layer, Batch):
                made[id(layer)] = group_normalization(layer)
            elif isinstance(layer, keras.Model) and batch_layers(layer):
                group_normalized(layer, made)
        return made.get(id(layer), layer)

    def called(layer: Any, *inputs: Any, **named: Any) -> Any:
        if isinstance(layer, keras.layers.GroupNormalization):
            named = {name: each for name, each in named.items() if name not in ("training", "mask")}
        return layer(*inputs, **named)

    functional = None if isinstance(model, keras.Sequential) else called
    compiled, model.compiled = model.compiled, False  # Keras would compile the clone from JSON
    try:
        clone = keras.models.clone_model(model, clone_function=replaced, call_function=functional)
    finally:
        model.compiled = compiled
    clone.trainable = model.trainable
    made[id(model)] = clone
    for layer in batch_layers(model):
        for name in ("gamma", "beta"):
            value = getattr(layer, name, None)
            if value is not None and id(layer) in made:
                getattr(made[id(layer)], name).assign(value)
    return clone


def group_normalization(layer: Any) -> Any:
    """Return group normalization in the place of a layer of batch normalization."""
    channels, positions = extent(layer)
    kept = {name: getattr(layer, name) for name in KEPT}
    groups = groups_of(channels, positions)
    return keras.layers.GroupNormalization(
        groups, **kept, name=layer.name, dtype=layer.dtype_policy
    )


def extent(layer: Any) -> tuple[int, float]:
    """Return the channels of a layer's input, and the positions of each in an example."""
    shape = tuple(layer.get_build_config()["input_shape"])
    axis = layer.axis % len(shape)
    others = [size for place, size in enumerate(shape) if place not in (0, axis)]
    return shape[axis], math.prod(math.inf if size is None else size for size in others)


def groups_of(channels: int, positions: float) -> int:
    """Return the number of groups: the largest divisor of the channels up to 32.

    A group holds at least 16 numbers of an example, or is all of them. `positions` are those of
    each channel in an example, such as the pixels.

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
    """Return the model with group normalization, compiled as before; refuse what cannot be."""
    if not found:
        raise ModelError(
            'With normalization="group" the model must have a BatchNormalization to replace',
            f"{model.name} without one",
            'Leave normalization="group" out of the space',
        )
    _check_graph(model)
    for layer in found:
        _check(model, layer)
    made: dict[int, Any] = {}
    clone = group_normalized(model, made)
    left = [layer.name for layer in found if id(layer) not in made]
    if left:
        raise _unreachable(model, ", ".join(left))
    for each in _models(model):
        if type(made.get(id(each), each)) is not type(each):
            raise _unreachable(each, each.name)
    if model.compiled:
        # Keras does not store auto_scale_loss: the class of the optimizer is the only trace of it
        scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        arguments = keras_private.compile_arguments(model)
        keras_private.compile_as_keras(clone, **arguments, auto_scale_loss=scaled)
    return clone


def _models(model: Any) -> Iterator[Any]:
    """Yield a model, and the models inside of it that hold batch normalization."""
    yield model
    for layer in model.layers:
        if isinstance(layer, keras.Model) and batch_layers(layer):
            yield from _models(layer)


def _check_graph(model: Any) -> None:
    """Refuse what is no graph of layers, and masks, which group normalization does not take."""
    for each in _models(model):
        if isinstance(each, keras.Sequential):
            continue
        if not isinstance(each, keras_private.functional_class()):
            raise _unreachable(each, each.name)
        for node in itertools.chain(*keras_private.nodes_by_depth(each).values()):
            if isinstance(node.operation, Batch):
                _check_mask(node)


def _check_mask(node: Any) -> None:
    masks = (node.arguments.kwargs.get("mask"), keras_private.mask_of(node.input_tensors[0]))
    if any(mask is not None for mask in masks):
        raise ModelError(
            'With normalization="group" no BatchNormalization may have a mask',
            f"{node.operation.name}, whose input has one",
            'Leave normalization="group" out of the space',
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
    channels, positions = extent(layer)
    if channels * positions < 2:
        raise ModelError(
            "Group normalization must have several numbers of an example to normalize",
            f"{layer.name} of one number",
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
