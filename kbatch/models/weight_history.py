"""Weight history: signs that the weights of a model are not new ones."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from kbatch.runtime import keras_private

# The attribute of a layer that holds a matrix, and the one that holds how it is drawn.
DRAWN = (("kernel", "kernel_initializer"), ("embeddings", "embeddings_initializer"))
# A matrix of another training has entries far outside of what its initializer draws. Of so many
# entries at least, the largest of two draws differ less than twice, normal ones included.
FEWEST, MOST, TIMES = 1_000, 10_000_000, 2
LOOKED_AT = 12  # matrices of a model


def was_trained(model: keras.Model) -> bool:
    """Tell whether a model has frozen layers, moving statistics, or weights that no one draws."""
    layers = keras_private.flatten_layers(model)
    owners = [layer for layer in layers if layer.weights and not isinstance(layer, keras.Model)]
    if any(not layer.trainable or has_statistics(layer) for layer in owners):
        return True
    drawn = [pair for layer in owners for pair in _drawn(layer)]
    largest = sorted(drawn, key=lambda pair: -int(np.prod(pair[0].shape)))[:LOOKED_AT]
    return any(_is_outside(matrix, initializer) for matrix, initializer in largest)


def has_statistics(layer: Any) -> bool:
    """Tell whether a layer holds moving statistics that are not those of a new one."""
    normalizes = isinstance(layer, keras.layers.BatchNormalization) and layer.built
    return normalizes and bool(np.any(np.asarray(layer.moving_mean) != 0))


def _drawn(layer: Any) -> list[tuple[Any, Any]]:
    """The matrices of a layer that are drawn at random, each with its initializer."""
    found = []
    for name, how in DRAWN:
        matrix, initializer = getattr(layer, name, None), getattr(layer, how, None)
        is_random = hasattr(initializer, "seed") and _is_of_keras(initializer)
        shape = getattr(matrix, "shape", None)
        if is_random and shape is not None and FEWEST <= np.prod(shape) <= MOST:
            found.append((matrix, initializer))
    return found


def _is_of_keras(initializer: Any) -> bool:
    """Whether an initializer is Keras' own: a user's may count its calls, or take another shape."""
    return type(initializer).__module__.split(".")[0] == "keras"


def _is_outside(matrix: Any, initializer: Any) -> bool:
    """Whether a matrix has entries that its initializer does not draw."""
    # a copy, since a seed generator of the user's would go on with each draw
    another = np.asarray(initializer.clone()(tuple(matrix.shape), dtype="float32"))
    own = np.asarray(keras.ops.cast(matrix, "float32"))
    return bool(np.max(np.abs(own)) > TIMES * np.max(np.abs(another)))
