"""Float16: models whose weights, activations and gradients are all of 16 bits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from kbatch.building.lars import LARS
from kbatch.dtype_policy import FLOAT16
from kbatch.errors import ModelError
from kbatch.recipe import Recipe
from kbatch.recipe_fields import COMPILED
from kbatch.runtime import keras_private
from kbatch.runtime.keras_private import GRADIENT_SUM

# Optimizers whose updates do not divide by the root of squared gradients.
SAFE = (keras.optimizers.SGD, keras.optimizers.Lion, LARS)
# TensorFlow's words where an operation has no kernel: in a graph, and where a layer is just called.
MISSING = (
    re.compile(r"No OpKernel was registered to support Op '(\w+)' used by {{node ([^}]*)}}"),
    re.compile(r"Could not find device for node: {{node \w+}} = (\w+)\[()"),
)
CALLED = re.compile(r"when calling (\w+)\.call")


def scaled(optimizer: Any, recipe: Recipe) -> Any:
    """Return the optimizer, in loss scaling where the policy is float16.

    Keras itself scales the loss for mixed_float16 only.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        recipe: `Recipe` of the training.
    """
    if recipe.policy != FLOAT16:
        return optimizer
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner.gradient_accumulation_steps:
        _accumulate_in_float32(inner)
    if optimizer is not inner:
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer)


def check(model: keras.Model, recipe: Recipe, optimizer: Any) -> None:
    """Refuse a model that cannot train in float16.

    Args:
        model: `keras.Model`, as `build` returned it.
        recipe: `Recipe` of the training.
        optimizer: Optimizer that `build` compiled the model with; `None` without one.

    Raises:
        ModelError: If the policy is float16, and the model has regularizers, or the recipe keeps a
            compiled optimizer that divides by the root of squared gradients.
    """
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
    """Say in words, inside the `with` block, which operation has no kernel for a policy.

    Args:
        policy: String, the policy of the training.

    Raises:
        ModelError: Instead of TensorFlow's error.
    """
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
