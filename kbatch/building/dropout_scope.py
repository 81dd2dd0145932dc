"""The dropout scope: a `with` block in which the rates of a model's dropout are scaled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from kbatch.errors import ModelError
from kbatch.rules import scaling
from kbatch.runtime.keras_private import flatten_layers


def dropouts(model: keras.Model) -> list[keras.layers.Dropout]:
    """Return the `Dropout` layers of a model, those inside of other layers among them."""
    layers = flatten_layers(model)
    return [layer for layer in layers if isinstance(layer, keras.layers.Dropout)]


def check(model: keras.Model, scale: float) -> None:
    """Refuse to scale the dropout of a model that has none.

    Args:
        model: `keras.Model`.
        scale: Float, the factor on the rates.

    Raises:
        ModelError: If the factor is not 1 and no layer drops anything.
    """
    if scale != 1 and not any(layer.rate for layer in dropouts(model)):
        raise ModelError(
            "A model must have a Dropout layer with a rate above 0 for its dropout to be scaled",
            f"{model.name} without one, and dropout_scale={scale:g}",
            'Leave dropout_scale at 1 and dropout_rule at "constant", or add Dropout layers',
        )


@contextmanager
def scaled_dropout(model: keras.Model, scale: float) -> Iterator[None]:
    """Scale the rates of the model's dropout inside the `with` block, and restore them afterwards.

    The layers stay the same objects. A scaled rate is at most 0.5 (see
    `kbatch.rules.scaling.scaled_dropout`). A saved model has the rates of the user's.

    Args:
        model: Compiled `keras.Model`.
        scale: Float, the factor; 1 leaves the model as it is.
    """
    if scale == 1:
        yield
        return
    before = [(layer, layer.rate) for layer in dropouts(model)]
    for layer, rate in before:
        layer.rate = scaling.scaled_dropout(rate, scale)
    model.train_function = None  # a step that is compiled already holds the former rates
    try:
        yield
    finally:
        for layer, rate in before:
            layer.rate = rate
        model.train_function = None
