"""The augmentation scope: a `with` block in which a model trains on augmented inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras


@contextmanager
def augmented(model: keras.Model, layers: Sequence[keras.layers.Layer]) -> Iterator[None]:
    """Train the model on augmented inputs inside the `with` block.

    The method `train_step` is wrapped on the instance. The model object, its layers and its saved
    file stay the same, a `train_step` of the user's stays in use, and the layers run on the device
    inside the compiled step.

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
            x = layer(x, training=True)
        return own_step(keras.utils.pack_x_y_sample_weight(x, y, sample_weight))

    model.train_step = train_step
    model.train_function = None  # a step that is compiled already would leave the layers out
    try:
        yield
    finally:
        del model.train_step
        model.train_function = None
