"""Scopes: a model augments, drops out and draws as its recipe says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import keras

from kbatch.data import augmentation
from kbatch.data.augmentation import Mixing
from kbatch.errors import ModelError
from kbatch.models import movement
from kbatch.models.losses import mixed_labels, understood
from kbatch.rules import scaling
from kbatch.runtime.keras_private import compiled_by_user, flatten_layers, stepping


@contextmanager
def augmented(model: keras.Model, layers: Sequence[keras.layers.Layer | Mixing]) -> Iterator[None]:
    """Train the model on augmented inputs inside the `with` block.

    The model object, its layers and its saved file stay the same, the train step that it has stays
    in use, and the layers run on the device inside the compiled step. Where a part of the pipeline
    mixes examples, the inner step gets `MixedLabels` in the place of the labels. Labels and weights
    of the height and width of the pictures move with them.
    """
    if not layers:
        yield
        return
    own_step, parts = model.train_step, movement.flat(layers)

    def train_step(data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with_places = _with_places(x, y, sample_weight)
        turn = _Moving(model, parts, x, y) if with_places else None
        for layer in parts:
            if isinstance(layer, Mixing):
                x, share = layer.mix(x)
                y, sample_weight = mixed_labels(y, sample_weight, share)
            elif turn is not None:
                x = turn(layer, x)
            else:
                x = layer(x, training=True)
        if turn is not None:
            y, sample_weight = turn.labels(x, y, sample_weight)
        return own_step(keras.utils.pack_x_y_sample_weight(x, y, sample_weight))

    mixes = any(isinstance(layer, Mixing) for layer in layers)
    with stepping(model, train_step), understood(model) if mixes else nullcontext():
        yield


class _Moving:
    """The movement of a batch of pictures, which its labels follow."""

    def __init__(self, model: keras.Model, parts: Sequence[Any], x: Any, y: Any) -> None:
        plain = [part for part in parts if not isinstance(part, Mixing)]
        movement.check(plain, x)
        self._moving = [part for part in plain if movement.kind(part, x) == movement.MOVES]
        filled = any(movement.fills(part, x) for part in self._moving)
        loss = compiled_by_user(model).get("loss")
        self._weighed = filled and movement.takes_weights(model, loss, x, y)
        self._planes = augmentation.placed(x)

    def __call__(self, layer: Any, x: Any) -> Any:
        """Return what a layer makes of the pictures."""
        if not any(layer is each for each in self._moving):
            return layer(x, training=True)
        both = layer({"images": x, "segmentation_masks": self._planes}, training=True)
        self._planes = both["segmentation_masks"]
        return both["images"]

    def labels(self, x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
        """Return labels and weights that have followed the pictures."""
        y, sample_weight = augmentation.moved((y, sample_weight), x, self._planes)
        if self._weighed:
            sample_weight = movement.weighed(y, sample_weight, x, self._planes)
        return y, sample_weight


def _with_places(x: Any, y: Any, sample_weight: Any) -> bool:
    """Whether a label or a weight has the height and width of the pictures."""
    if keras.tree.is_nested(x):
        return False
    return any(augmentation.has_places(part, x) for part in keras.tree.flatten((y, sample_weight)))


def dropouts(model: keras.Model) -> list[keras.layers.Dropout]:
    """Return the `Dropout` layers of a model, those inside of other layers among them."""
    layers = flatten_layers(model)
    return [layer for layer in layers if isinstance(layer, keras.layers.Dropout)]


def check_dropout(model: keras.Model, scale: float) -> None:
    """Refuse to scale the dropout of a model that has none."""
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
