"""A model whose train step begins with random layers, for the length of a `with`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras


@contextmanager
def augmented(model: keras.Model, layers: Sequence[keras.layers.Layer]) -> Iterator[None]:
    """Let `fit` train the model on augmented inputs inside the `with`.

    The train step is wrapped on the instance: the model object, its layers, and what is saved stay
    the same, and the layers run on the device inside the compiled step, whatever `train_step` the
    model has.

    Args:
        model: Compiled model.
        layers: Layers applied in order to `x`; none changes nothing.
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
    model.train_function = None  # a step compiled before would leave the layers out
    try:
        yield
    finally:
        del model.train_step
        model.train_function = None
