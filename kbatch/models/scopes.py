"""Scopes: a model augments, drops out and draws as its recipe says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import keras

from kbatch.data.augmentation import Mixing, augmented_step, follows, moved
from kbatch.errors import ModelError
from kbatch.models import movement
from kbatch.models.losses import mixed, mixing_step
from kbatch.rules import scaling
from kbatch.runtime.keras_private import compiled_by_user, flatten_layers, stepping

# Where a model whose trace serves several trainings keeps the parts of its pipeline, its step and
# what is compiled of it, in a list that is empty before the first.
KEPT_STEP = "_kbatch_kept_step"


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
    kept, compiled = vars(model).get(KEPT_STEP), None

    def train_step(data: Any) -> Any:
        x, *labels = keras.utils.unpack_x_y_sample_weight(data)
        following = _following(model, parts, x, labels) if follows(x, labels) else ()
        step, alone = own_step, list[Any]()
        for part in reversed(parts):
            if isinstance(part, Mixing):
                step = mixing_step(augmented_step(step, alone, *following), part.mix)
                alone = []
            else:
                alone.insert(0, part)
        return augmented_step(step, alone, *following)(data)

    mixes = any(isinstance(layer, Mixing) for layer in layers)
    if kept:
        earlier, train_step, compiled = kept.pop()
        for state, value in zip(drawn_from(earlier), drawn_from(parts), strict=True):
            state.assign(value)
        parts = earlier
    with stepping(model, train_step), mixed(model) if mixes else nullcontext():
        model.train_function = compiled
        yield
        if kept is not None:
            kept.append((parts, train_step, model.train_function))


def drawn_from(parts: Sequence[Any]) -> list[Any]:
    """Return the variables from which the parts of a pipeline draw."""
    states = list[Any]()
    for part in parts:
        states += part.variables if isinstance(part, keras.layers.Layer) else [part.seed.state]
    return states


def _following(
    model: keras.Model, parts: Sequence[Any], x: Any, labels: Sequence[Any]
) -> tuple[Callable[[Any], bool], Callable[..., Any]]:
    """Return whether a layer moves pictures, and how labels and weights follow them."""
    plain = [part for part in parts if not isinstance(part, Mixing)]
    movement.check(plain, x)
    moving = [part for part in plain if movement.kind(part, x) == movement.MOVES]
    filled = any(movement.fills(part, x) for part in moving)
    loss = compiled_by_user(model).get("loss")
    weighed = filled and movement.takes_weights(model, loss, x, labels[0])

    def moves(layer: Any) -> bool:
        return any(layer is each for each in moving)

    def followed(labels: Any, pictures: Any, planes: Any) -> Any:
        y, sample_weight = moved(labels, pictures, planes)
        if weighed:
            sample_weight = movement.weighed(y, sample_weight, pictures, planes)
        return y, sample_weight

    return moves, followed


def dropouts(model: Any) -> list[Any]:
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
