"""Weights: which of a model's variables were loaded or trained, and which an initializer drew.

Loaded and trained ones are where each training begins. The others are drawn afresh from each seed.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from scipy import stats

from kbatch.runtime import keras_private

COMPARED = 20_000  # numbers of a variable that are compared with fresh ones; chosen by hand
FEWEST = 30  # numbers from which on a distribution is compared; chosen by hand
MOST_BETWEEN = 2  # layers between loaded ones that are taken for loaded; chosen by hand
SURE = 1e-4  # p-value (Kolmogorov-Smirnov) below which a variable is no fresh one; chosen by hand
BOUND = 0.02  # two draws whose largest numbers differ by less come from a bounded distribution
SEED_STATE = "seed_generator_state"


@dataclass(frozen=True)
class StartWeights:
    """The variables of a model that are no fresh ones, with their values, by their place.

    Attributes:
        names: Paths of these variables.
        count: Integer, all variables of the model but the states of seed generators.
    """

    values: dict[int, np.ndarray] = field(default_factory=dict)
    assets: dict[int, dict[str, bytes]] = field(default_factory=dict)  # files of layers
    names: tuple[str, ...] = ()
    count: int = 0

    @classmethod
    def of(cls, model: keras.Model, fresh: Sequence[keras.Model]) -> StartWeights:
        """Return what of a model was loaded or trained.

        Args:
            model: The user's model.
            fresh: Two models like it, which two seeds have drawn.
        """
        variables = model.variables
        drawn = [[_value(each) for each in one.variables] for one in fresh]
        known = {
            place: _value(variable)
            for place, variable in enumerate(variables)
            if SEED_STATE not in variable.path
        }
        loaded = {
            place: not _is_fresh(value, [each[place] for each in drawn])
            for place, value in known.items()
        }
        loaded = _with_neighbours(model, loaded)
        kept = {place: known[place] for place, is_loaded in loaded.items() if is_loaded}
        names = tuple(variables[place].path for place in kept)
        return cls(kept, _assets(model), names, len(known))

    def put(self, model: keras.Model) -> None:
        """Give a model made again these values, and what its layers keep beside variables."""
        variables = model.variables
        for place, value in self.values.items():
            variables[place].assign(value)
        for place, layer in enumerate(keras_private.flatten_layers(model)):
            if place in self.assets:
                _load_assets(layer, self.assets[place])
            if hasattr(layer, "finalize_state"):
                layer.finalize_state()

    @property
    def sentence(self) -> str:
        """What each training begins with, in words."""
        if not self.values:
            return "Each training begins with fresh weights, drawn from its seed"
        if len(self.values) == self.count:
            return "Each training begins with the weights that the model had, loaded or trained"
        return (
            f"Each training begins with {len(self.values)} of {self.count} variables as the model "
            f"had them, loaded or trained ({_some(self.names)}); the others are drawn from its seed"
        )


def _some(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    shown = ", ".join(names[:2])
    return f"{shown}, …" if len(names) > 2 else shown


def _value(variable: Any) -> np.ndarray:
    return np.array(keras_private.tensorflow_variable(variable).numpy())


def _is_fresh(value: np.ndarray, drawn: Sequence[np.ndarray]) -> bool:
    """Whether a value may be one more draw of the initializer that drew the others."""
    first, second = drawn[0], drawn[1]
    if np.array_equal(first, second):  # zeros, ones or another constant
        return np.array_equal(value, first)
    if value.dtype.kind != "f" or value.size < FEWEST:
        return True  # its neighbours in the layer decide
    own, one, other = (np.abs(_flat(each)) for each in (value, first, second))
    bound = max(one.max(), other.max())
    if abs(one.max() - other.max()) < BOUND * bound and own.max() > (1 + BOUND) * bound:
        return False
    return bool(stats.ks_2samp(_flat(value), _flat(first)).pvalue > SURE)


def _flat(value: np.ndarray) -> np.ndarray:
    flat = value.reshape(-1).astype("float64")
    step = max(flat.size // COMPARED, 1)
    return flat[::step]


def _with_neighbours(model: keras.Model, loaded: dict[int, bool]) -> dict[int, bool]:
    """What was trained with a variable was trained too: its layer, or all that an optimizer has."""
    places = {id(variable): place for place, variable in enumerate(model.variables)}
    groups = [own_variables(layer) for layer in keras_private.flatten_layers(model)]
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built and int(optimizer.iterations) > 0:
        loaded = {**loaded, **{places[id(each)]: True for each in model.trainable_variables}}
    for group in groups:
        own = [places[id(each)] for each in group if places.get(id(each)) in loaded]
        if any(loaded[place] for place in own):
            loaded = {**loaded, **dict.fromkeys(own, True)}
    layers = [
        [places[id(each)] for each in group if places.get(id(each)) in loaded] for group in groups
    ]
    between = _between([own for own in layers if own], loaded)
    return {**loaded, **dict.fromkeys(between, True)}


def _between(layers: Sequence[list[int]], loaded: Mapping[int, bool]) -> Iterator[int]:
    """The variables of a layer or two between loaded ones.

    Their values may look like those of an initializer, but nobody puts new layers there, and to
    draw them anew would spoil what was loaded.
    """
    known = [place for place, own in enumerate(layers) if loaded[own[0]]]
    for one, other in itertools.pairwise(known):
        if other - one <= 1 + MOST_BETWEEN:
            yield from itertools.chain(*layers[one + 1 : other])


def own_variables(layer: Any) -> list[Any]:
    """Return the variables of a layer that belong to no layer inside of it."""
    inside = {
        id(variable)
        for each in keras_private.flatten_layers(layer)
        if each is not layer
        for variable in each.variables
    }
    return [each for each in layer.variables if id(each) not in inside]


def _assets(model: keras.Model) -> dict[int, dict[str, bytes]]:
    """The files of layers that keep more than variables, such as a vocabulary."""
    found = {}
    for place, layer in enumerate(keras_private.flatten_layers(model)):
        if not hasattr(layer, "save_assets"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            layer.save_assets(folder)
            files = {each.name: each.read_bytes() for each in Path(folder).iterdir()}
        if files:
            found[place] = files
    return found


def _load_assets(layer: Any, files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        layer.load_assets(folder)
