"""The start of trainings: variables that models share are put back before each training.

A base that is made outside of `build`, or one and the same model, is trained on by every training
that uses it. Its variables are found once, by two calls of `build`, and get their values back.
"""

from __future__ import annotations

import functools
import inspect
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.runtime import keras_private

# What `kbatch.train` left in shared variables, by the `id` of each: the variable, its value before,
# and the checksum of its value after. Who changes it later has made a new start.
_left: dict[int, tuple[Any, np.ndarray, int]] = {}


class Start:
    """The variables that all models of a build function share, and their values at the start.

    Shared by all copies of a `ModelMaker`. It travels to a worker as its values alone; there the
    variables are found anew.
    """

    def __init__(self) -> None:
        self._variables: list[Any] | None = None
        self._values: list[np.ndarray] = []

    def __getstate__(self) -> list[np.ndarray]:
        return self._values

    def __setstate__(self, values: list[np.ndarray]) -> None:
        self._variables, self._values = None, values

    @property
    def begun(self) -> bool:
        """Boolean, whether it is known which variables models share."""
        return self._variables is not None

    def begin(self, first: keras.Model, second: keras.Model) -> None:
        """Note the variables that two models share, unless they are known, and their values.

        Args:
            first: `keras.Model`, as `build` returned it.
            second: `keras.Model` of another call.
        """
        if self.begun:
            return
        others = {id(variable) for variable in _variables(second)}
        self._variables = [each for each in _variables(first) if id(each) in others]
        values = [_before_training(each) for each in self._variables]
        given = self._values
        if [each.shape for each in given] == [each.shape for each in values]:
            values = given or values
        self._values = values
        self.put_back()

    def put_back(self) -> None:
        """Give shared variables the values that they had at the start."""
        for variable, value in zip(self._variables or (), self._values, strict=False):
            variable.assign(value)

    def find(self, build: Callable[[], keras.Model]) -> None:
        """Find the shared variables in a new process, if there were any where it came from."""
        if not self.begun and self._values:
            self.begin(build(), build())

    def leave(self) -> None:
        """Note that kbatch has trained the shared variables, and nobody else yet."""
        for variable, value in zip(self._variables or (), self._values, strict=True):
            key = id(variable)
            reference = weakref.ref(variable, functools.partial(_forget, key))
            _left[key] = (reference, value, _checksum(_value(variable)))

    def is_one(self, model: keras.Model) -> bool:
        """Whether `build` returns one and the same model: all its variables are shared."""
        shared = {id(variable) for variable in self._variables or ()}
        return bool(model.variables) and all(id(each) in shared for each in model.variables)

    def trained(self, model: keras.Model) -> list[str]:
        """Return the paths of the shared variables that a model trains."""
        shared = {id(variable) for variable in self._variables or ()}
        return [each.path for each in model.trainable_variables if id(each) in shared]


def _variables(model: keras.Model) -> list[Any]:
    """The variables of a model, and those that its losses hold, such as a counter or a centre."""
    found = list(model.variables)
    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        held = list(getattr(loss, "__dict__", {}).values())
        function = getattr(loss, "fn", loss)
        if inspect.isfunction(function):
            names = inspect.getclosurevars(function)
            held += [*names.nonlocals.values(), *names.globals.values()]
        found += [each for each in held if isinstance(each, (keras.Variable, tf.Variable))]
    return list({id(each): each for each in found}.values())


def _before_training(variable: Any) -> np.ndarray:
    """The value of a variable before kbatch trained it; its value now if somebody changed it."""
    value = _value(variable)
    known = _left.get(id(variable))
    if known is None or known[0]() is not variable or known[2] != _checksum(value):
        return value
    return known[1]


def _forget(key: int, reference: Any) -> None:
    _left.pop(key, None)


def _value(variable: Any) -> np.ndarray:
    return np.array(keras_private.tensorflow_variable(variable).numpy())


def _checksum(value: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(value).tobytes())
