"""The augmentation scope: a `with` block in which a model trains on augmented inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import keras

from kbatch.building.mixed_labels import mixed, understood
from kbatch.building.train_step_scope import stepping
from kbatch.data.mixture import Mixing


@contextmanager
def augmented(model: keras.Model, layers: Sequence[keras.layers.Layer | Mixing]) -> Iterator[None]:
    """Train the model on augmented inputs inside the `with` block.

    The model object, its layers and its saved file stay the same, the train step that it has stays
    in use, and the layers run on the device inside the compiled step. Where a part of the pipeline
    mixes examples, the inner step gets `MixedLabels` in the place of the labels.

    Args:
        model: Compiled `keras.Model`.
        layers: Sequence of layers to apply to `x` in order; empty for no augmentation.
    """
    if not layers:
        yield
        return
    own_step = model.train_step

    def train_step(data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        for layer in layers:
            if isinstance(layer, Mixing):
                x, share = layer.mix(x)
                y, sample_weight = mixed(y, sample_weight, share)
            else:
                x = layer(x, training=True)
        return own_step(keras.utils.pack_x_y_sample_weight(x, y, sample_weight))

    mixes = any(isinstance(layer, Mixing) for layer in layers)
    with stepping(model, train_step), understood(model) if mixes else nullcontext():
        yield
