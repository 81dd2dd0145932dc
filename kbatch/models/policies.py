"""Policies: models in float8, float16 and float32."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from kbatch.errors import ModelError
from kbatch.models.losses import loss_counts
from kbatch.models.optimizers import LARS
from kbatch.recipe import Recipe
from kbatch.recipe_words import COMPILED, FLOAT8, FLOAT8_BASE, FLOAT16, policy_of_keras
from kbatch.runtime import device, keras_private
from kbatch.runtime.keras_private import GRADIENT_SUM

KINDS = (keras.layers.Dense, keras.layers.EinsumDense)


def quantized(model: keras.Model) -> keras.Model:
    """Let the dense layers of a model multiply in float8, and return it.

    Layers with a dtype of their own, such as `dtype="float32"` of an output, keep it.
    """
    if not model.built:
        raise ModelError(
            'A model must be built for policy="float8", which adds variables to its layers',
            f"{model.name}, whose input shape only the data tell",
            "Begin it with keras.Input, or call build(input_shape) on it",
        )
    chosen = _able(model)
    if not chosen:
        raise ModelError(
            'policy="float8" must find a Dense or EinsumDense layer, which are those that Keras '
            "trains in float8, without a dtype of its own",
            ", ".join(sorted({type(layer).__name__ for layer in _of_weights(model)})) or "no layer",
            f"Take policy={FLOAT8_BASE!r}",
        )
    twice = _called_twice(model, {id(layer) for layer in chosen})
    if twice:
        raise ModelError(
            'With policy="float8" a layer must be called once: Keras would add up its scales',
            ", ".join(twice),
            f"Take policy={FLOAT8_BASE!r}, or a layer for each call",
        )
    names = {id(layer) for layer in chosen}
    model.quantize("float8", filters=lambda layer: id(layer) in names)
    return model


def check_float8(model: keras.Model, recipe: Recipe, loss: Any) -> None:
    """Refuse a model whose accumulated passes are weighted, and so its scales."""
    if recipe.policy == FLOAT8 and recipe.accumulation_steps > 1 and loss_counts(model, loss):
        raise ModelError(
            'A loss that accumulates with policy="float8" must not divide by a count of its own '
            "(a mask, ignore_class, mean_with_sample_weight): its passes would be weighted",
            f"{recipe.accumulation_steps} passes of {recipe.micro_batch_size}",
            f"Take policy={FLOAT8_BASE!r}, or batch sizes that fit at once",
        )


def float8_remarks(model: keras.Model, recipe: Recipe) -> tuple[str, ...]:
    """Return sentences for the user about which layers train in float8, and whether it is fast."""
    if recipe.policy != FLOAT8:
        return ()
    layers = _of_weights(model)
    in_float8 = sum(layer.dtype_policy.quantization_mode == "float8" for layer in layers)
    said = [
        f"float8: {in_float8} of {len(layers)} layers with weights multiply in float8, "
        f"the others compute as under {FLOAT8_BASE}"
    ]
    if not device.multiplies_float8():
        said.append(
            "float8 is simulated, which costs time: a GPU multiplies it from compute capability "
            "8.9 on (Ada, Hopper)"
        )
    elif not recipe.jit_compile:
        said.append("float8 is simulated, which costs time: XLA fuses it, so take jit_compile=True")
    return tuple(said)


def _able(model: keras.Model) -> list[keras.layers.Layer]:
    return [
        layer
        for layer in _of_weights(model)
        # subclasses compute in their own way, and Keras refuses them
        if type(layer) in KINDS and layer.dtype_policy.name == FLOAT8_BASE
    ]


def _of_weights(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers with weights that hold no other layers."""
    layers = {id(layer): layer for layer in keras_private.flatten_layers(model)}
    return [
        layer
        for layer in layers.values()
        if layer.weights and len(keras_private.flatten_layers(layer)) == 1
    ]


def _called_twice(model: keras.Model, chosen: set[int]) -> list[str]:
    """The names of layers that hold a chosen layer and are called more than once in one graph."""
    graph = keras_private.functional_of_sequential(model) if _is_sequential(model) else model
    if not isinstance(graph, keras_private.functional_class()):
        return []
    nodes = [node for depth in keras_private.nodes_by_depth(graph).values() for node in depth]
    calls = Counter(id(node.operation) for node in nodes)
    operations = {id(node.operation): node.operation for node in nodes}
    layers = [each for each in operations.values() if isinstance(each, keras.layers.Layer)]
    found = [
        layer.name
        for layer in layers
        if calls[id(layer)] > 1 and chosen & set(map(id, keras_private.flatten_layers(layer)))
    ]
    for layer in layers:
        if isinstance(layer, keras.Model):
            found += _called_twice(layer, chosen)
    return found


def _is_sequential(model: keras.Model) -> bool:
    return isinstance(model, keras.Sequential)


# Optimizers whose updates do not divide by the root of squared gradients.
SAFE = (keras.optimizers.SGD, keras.optimizers.Lion, LARS)
# TensorFlow's words where an operation has no kernel: in a graph, and where a layer is just called.
MISSING = (
    re.compile(r"No OpKernel was registered to support Op '(\w+)' used by {{node ([^}]*)}}"),
    re.compile(r"Could not find device for node: {{node \w+}} = (\w+)\[()"),
)
CALLED = re.compile(r"when calling (\w+)\.call")


def loss_scaled(optimizer: Any, recipe: Recipe) -> Any:
    """Return the optimizer, in loss scaling where the policy is float16.

    Keras itself scales the loss for mixed_float16 only.
    """
    if recipe.policy != FLOAT16:
        return optimizer
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner.gradient_accumulation_steps:
        _accumulate_in_float32(inner)
    if optimizer is not inner:
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer)


def check_float16(model: keras.Model, recipe: Recipe, optimizer: Any) -> None:
    """Refuse a model that cannot train in float16."""
    if recipe.policy != FLOAT16:
        return
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if recipe.optimizer == COMPILED and inner is not None and not isinstance(inner, SAFE):
        raise ModelError(
            'A model compiled for policy="float16" must have SGD or Lion: squared gradients are '
            "0 in float16 below 2.4e-4, and others divide by their root",
            type(inner).__name__,
            'Compile it with SGD, or take policy="mixed_float16"',
        )
    regularized = [
        layer.name for layer in keras_private.flatten_layers(model) if _is_regularized(layer)
    ]
    if regularized:
        raise ModelError(
            'A model must have no regularizer for policy="float16": Keras cannot add its loss to '
            "the other, which is of float32",
            ", ".join(regularized),
            'Leave it out, take weight_decay, or policy="mixed_float16"',
        )


@contextmanager
def explained(policy: str) -> Iterator[None]:
    """Say in words, inside the `with` block, which operation has no kernel for a policy."""
    try:
        yield
    except Exception as error:  # the class differs with the device, the text does not
        found = [pattern.search(str(error)) for pattern in MISSING]
        missing = next(filter(None, found), None)
        if missing is None or policy == "float32":
            raise
        operation, node = missing.groups()
        called = CALLED.findall(str(error))
        layer = "/".join(node.split("/")[-2:]) or " ".join(called[-1:]) or "the model"
        raise ModelError(
            f"Every layer must be able to compute on this device with policy={policy!r}",
            f"{operation} of {layer}",
            'Give this layer dtype="float32", or take another policy',
        ) from error


def _accumulate_in_float32(optimizer: Any) -> None:
    """Keep the sums of gradients in float32, the type of gradients after loss scaling.

    Keras would keep them in the weights' type. TensorFlow adds no float32 to float16, and squares
    of gradients, by which they are clipped, overflow in float16 above 256.
    """
    plain = optimizer.add_variable

    def add_variable(*arguments: Any, **named: Any) -> Any:
        if str(named.get("name")).endswith(GRADIENT_SUM):
            named["dtype"] = "float32"
        return plain(*arguments, **named)

    optimizer.add_variable = add_variable


def _is_regularized(layer: keras.layers.Layer) -> bool:
    if getattr(layer, "activity_regularizer", None) is not None:
        return True
    own = keras_private.own_trainable_variables(layer)
    return any(getattr(variable, "regularizer", None) is not None for variable in own)


@contextmanager
def policy_scope(policy: str, restore: str | keras.DTypePolicy) -> Iterator[None]:
    """Set Keras' global dtype policy inside the `with` block, and `restore` afterwards."""
    keras.config.set_dtype_policy(policy_of_keras(policy))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(restore)
