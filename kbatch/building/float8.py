"""Float8: models whose dense layers multiply in 8 bits, and are trained so by Keras.

Keras keeps a scale and a history of the largest numbers for the inputs, the kernel and the
gradient of each layer. It hands their new values over as gradients, and the optimizer overwrites
the old ones with them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import keras

from kbatch.building.loss_counts import counts
from kbatch.dtype_policy import FLOAT8, FLOAT8_BASE
from kbatch.errors import ModelError
from kbatch.recipe import Recipe
from kbatch.runtime import device, keras_private

KINDS = (keras.layers.Dense, keras.layers.EinsumDense)


def quantized(model: keras.Model) -> keras.Model:
    """Let the dense layers of a model multiply in float8, and return it.

    Layers with a dtype of their own, such as `dtype="float32"` of an output, keep it.

    Args:
        model: Built `keras.Model`, of the policy mixed_bfloat16.

    Raises:
        ModelError: If the model is not built, has no layer that can, or calls one twice.
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


def check(model: keras.Model, recipe: Recipe, loss: Any) -> None:
    """Refuse a model whose accumulated passes are weighted, and so its scales.

    Args:
        model: `keras.Model`, as `build` returned it.
        recipe: `Recipe` of the training.
        loss: The loss argument of `compile`.

    Raises:
        ModelError: If the recipe accumulates in float8, and the loss divides by a count of its own.
    """
    if recipe.policy == FLOAT8 and recipe.accumulation_steps > 1 and counts(model, loss):
        raise ModelError(
            'A loss that accumulates with policy="float8" must not divide by a count of its own '
            "(a mask, ignore_class, mean_with_sample_weight): its passes would be weighted",
            f"{recipe.accumulation_steps} passes of {recipe.micro_batch_size}",
            f"Take policy={FLOAT8_BASE!r}, or batch sizes that fit at once",
        )


def remarks(model: keras.Model, recipe: Recipe) -> tuple[str, ...]:
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
