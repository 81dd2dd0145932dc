"""Group normalization in the place of batch normalization."""

import math

import keras

from kbatch.models.normalization import KEPT, groups_of


def group_normalized(model):
    """Return the model with group normalization in the place of batch normalization.

    It is a Sequential or Functional model; all other layers stay the same objects.
    """

    def replaced(layer):
        if isinstance(layer, keras.layers.BatchNormalization):
            return group_normalization(layer)
        nested = isinstance(layer, keras.Model)
        return group_normalized(layer) if nested else layer

    def called(layer, *inputs, **named):
        if isinstance(layer, keras.layers.GroupNormalization):
            named.pop("training", None)
        return layer(*inputs, **named)

    functional = None if isinstance(model, keras.Sequential) else called
    return keras.models.clone_model(model, clone_function=replaced, call_function=functional)


def group_normalization(layer):
    """Return group normalization in the place of a layer of batch normalization."""
    shape = layer.get_build_config()["input_shape"]
    axis = layer.axis % len(shape)
    others = [size for place, size in enumerate(shape) if place not in (0, axis)]
    positions = math.prod(math.inf if size is None else size for size in others)
    settings = layer.get_config()
    kept = {name: settings[name] for name in KEPT}
    groups = groups_of(shape[axis], positions)
    return keras.layers.GroupNormalization(
        groups, **kept, name=layer.name, dtype=layer.dtype_policy
    )
