"""The outputs of a model: names, shapes, the values that they can have, masks and added losses."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.models.compilation import fresh_names
from kbatch.models.start import seed_scope
from kbatch.runtime import keras_private

LOOKED_AT = 2  # examples that a model is called with
# What the values of an output are, by its last activation; any number by default.
SHARES, UNIT, POSITIVE, BOTH, ANY = "shares", "unit", "positive", "both", "any"
RANGES = {
    "softmax": SHARES,
    "sigmoid": UNIT,
    "hard_sigmoid": UNIT,
    "relu": POSITIVE,
    "softplus": POSITIVE,
    "exponential": POSITIVE,
    "tanh": BOTH,
    "softsign": BOTH,
}
Masks = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model, in the order in which Keras measures them.

    Attributes:
        structure: The outputs as the model returns them: one, a list, a tuple or a dictionary.
        names: Tuple of strings; empty where the outputs have no names.
        shapes: Tuple of shapes without the examples' axis; `None` for a length that varies.
        ranges: Tuple of strings, what the values of each output are.
        masks: Function of the inputs that returns the mask of each output; `None` without masks.
        adds_losses: Boolean, whether layers add losses of their own.
    """

    structure: Any
    names: tuple[str, ...]
    shapes: tuple[tuple[int | None, ...], ...]
    ranges: tuple[str, ...]
    masks: Masks | None
    adds_losses: bool

    def flat(self, structure: Any) -> list[Any]:
        """Return the part of each output of labels, weights or outputs."""
        if isinstance(structure, Mapping) and set(structure) == set(self._keys):
            return [structure[key] for key in self._keys]
        return list(keras.tree.flatten(structure))

    def packed(self, parts: list[Any]) -> Any:
        """Return parts, one for each output, as the model returns them."""
        if isinstance(self.structure, Mapping):
            by_name = dict(zip(self._keys, parts, strict=True))
            return {key: by_name[key] for key in self.structure}
        return keras.tree.pack_sequence_as(self.structure, parts)

    @property
    def _keys(self) -> list[str]:
        """The outputs' names in Keras' order: the model's, or sorted if only a dictionary names."""
        own = self.structure if isinstance(self.structure, Mapping) else None
        if own is None or set(own) == set(self.names):
            return list(self.names)
        return sorted(own)


def outputs_of(model: keras.Model, x: Any) -> Outputs:
    """Look at the outputs of a model, which is built by that if it was not.

    Args:
        model: `keras.Model`, one that is not trained.
        x: Inputs, a batch of examples.

    Raises:
        Exception: Whatever layers raise, the user's own among them.
    """
    few = keras.tree.map_structure(lambda part: part[:LOOKED_AT], x)
    called, adds_losses = _called(model, few)
    symbolic = getattr(model, "outputs", None) or []
    flat = list(keras.tree.flatten(called))
    shapes = [tuple(part.shape) for part in (symbolic if len(symbolic) == len(flat) else flat)]
    masked = any(keras_private.mask_of(part) is not None for part in flat)
    plain = Outputs(called, keras_private.output_names(model), (), (), None, adds_losses)
    order = [next(k for k, own in enumerate(flat) if own is part) for part in plain.flat(called)]
    ranges = [_range_of(part) for part in symbolic] or [ANY] * len(flat)
    return Outputs(
        keras.tree.map_structure(lambda _: 0, called),
        plain.names,
        tuple(shapes[place][1:] for place in order),
        tuple(ranges[place] for place in order),
        _masks(model, plain) if masked else None,
        adds_losses,
    )


def _called(model: keras.Model, x: Any) -> tuple[Any, bool]:
    """The outputs of a few examples, and whether layers added losses; no variable changes."""
    with seed_scope(random.randrange(1)), fresh_names():
        if not model.built:
            model(x, training=False)
        with keras.StatelessScope(collect_losses=True) as scope:
            called = model(x, training=False)
    return called, bool(scope.losses)


def _masks(model: keras.Model, outputs: Outputs) -> Masks:
    """A function that computes the masks alone: TensorFlow prunes what they do not need."""

    @tf.function(reduce_retracing=True)
    def masks(x: Any) -> list[Any]:
        with keras.StatelessScope(collect_losses=True):
            flat = outputs.flat(model(x, training=False))
        found = [keras_private.mask_of(part) for part in flat]
        return [tf.constant(True) if mask is None else mask for mask in found]

    def numpy_masks(x: Any) -> list[Any]:
        found = [np.asarray(mask) for mask in masks(x)]
        return [mask if mask.ndim else None for mask in found]

    return numpy_masks


def _range_of(output: Any) -> str:
    """What the values of an output are, by the activation of the layer that makes it."""
    history = getattr(output, "_keras_history", None)
    operation = None if history is None else history.operation
    activation = getattr(operation, "activation", None)
    name = getattr(activation, "__name__", None) or type(operation).__name__.lower()
    return RANGES.get(name, ANY)
