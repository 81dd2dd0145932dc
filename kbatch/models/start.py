"""Start: every training begins with the same weights, whatever `build` shares."""

from __future__ import annotations

import functools
import inspect
import random
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.errors import ModelError
from kbatch.runtime import keras_private, tensorflow_private

NAMED = 3  # variables that a sentence names
FIRST_NUMBERS = 64  # of a variable, by which a training is known

# What `kbatch.train` left in shared variables, by the `id` of each: the variable, its value before,
# and the checksum of its value after. Who changes it later has made a new start.
_left: dict[int, tuple[Any, np.ndarray, int]] = {}


class Made:
    """The TensorFlow variables that a call of `build` makes."""

    def __init__(self) -> None:
        self._variables: list[tf.Variable] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the variables that are made inside of this context, in this thread."""

        def creator(create: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
            self._variables.append(create(**options))
            return self._variables[-1]

        with tf.variable_creator_scope(creator):
            yield

    def not_among(self, variables: Iterable[Any]) -> list[Any]:
        """Return the variables that were made before."""
        made = {id(each) for each in self._variables}
        return [
            each for each in variables if id(keras_private.tensorflow_variable(each)) not in made
        ]


@dataclass
class Travel:
    """What of a `Start` goes to a worker."""

    # arrays, the values of the variables that two models share
    values: list[np.ndarray] = field(default_factory=list)
    # nested structure of `tf.TensorSpec`, what the models are called on; `None` if they need no
    # call
    inputs: Any = None


class Start:
    """The variables that models of a build function share, and their values at the start.

    Shared by all copies of a `ModelMaker`. It travels to a worker as a `Travel`; there the
    variables are found anew.
    """

    def __init__(self) -> None:
        self._shared: dict[int, tuple[Any, np.ndarray]] = {}
        self._travel = Travel()
        self._begun = False
        # trainable variables that calls of `build` made: a reference, and how each began
        self._made: dict[int, tuple[Any, bytes]] = {}

    def __getstate__(self) -> Travel:
        return self._travel

    def __setstate__(self, travel: Travel) -> None:
        self.__init__()  # type: ignore[misc]
        self._travel = travel

    def begin(self, first: keras.Model, second: keras.Model, inputs: Any = None) -> None:
        """Note the variables that two models share, unless it was done, and their values."""
        if self._begun:
            return
        others = {id(variable) for variable in _variables(second)}
        variables = [each for each in _variables(first) if id(each) in others]
        values = [self._at_first(each) for each in variables]
        given = self._travel.values
        if [each.shape for each in given] == [each.shape for each in values]:
            values = given or values
        for variable, value in zip(variables, values, strict=True):
            self._shared[id(variable)] = (variable, value)
        self._travel = Travel(values, _specs(inputs))
        self._begun = True
        self.put_back()

    def note(self, model: keras.Model, made: Made) -> None:
        """Note the variables of a model that were there before its call of `build`.

        So a base is found that only some values of hyperparameters choose.
        """
        if not isinstance(model, keras.Model):  # `compile_for` refuses it
            return
        before = made.not_among(_variables(model))
        fresh = [each for each in before if id(each) not in self._shared]
        changed = [each.path for each in fresh if self._was_trained(each)]
        if changed:
            raise ModelError(
                "Weights that several calls of `build` use must be made outside of it, or anew in "
                "each call: each training begins with their first values",
                f"{', '.join(changed[:NAMED])}, made by an earlier call and trained since",
                "Make them before the search, or leave out the cache inside of `build`",
            )
        for variable in fresh:
            self._shared[id(variable)] = (variable, _before_training(variable))
        shared = {id(each) for each in before}
        for variable in model.trainable_variables:
            if id(variable) not in shared:
                key = id(variable)
                reference = weakref.ref(variable, functools.partial(self._forget, key))
                self._made[key] = (reference, _beginning(variable))

    def _was_trained(self, variable: Any) -> bool:
        """Whether an earlier call of `build` made a variable, which has changed since."""
        reference, beginning = self._made.get(id(variable), (None, b""))
        return (
            reference is not None
            and reference() is variable
            and (_beginning(variable) != beginning)
        )

    def _forget(self, key: int, reference: Any) -> None:
        self._made.pop(key, None)

    def put_back(self) -> None:
        """Give shared variables the values that they had at the start."""
        for variable, value in self._shared.values():
            variable.assign(value)

    def find(self, build: Callable[[], keras.Model]) -> None:
        """Find the shared variables in a new process, if there were any where it came from."""
        if self._begun or not self._travel.values:
            return
        inputs = _zeros(self._travel.inputs)
        self.begin(build_called(build, inputs), build_called(build, inputs), inputs)

    def leave(self) -> None:
        """Note that kbatch has trained the shared variables, and nobody else yet."""
        for key, (variable, value) in self._shared.items():
            reference = weakref.ref(variable, functools.partial(_forget, key))
            _left[key] = (reference, value, _checksum(_value(variable)))

    def is_one(self, model: keras.Model) -> bool:
        """Whether `build` returns one and the same model: all its variables are shared."""
        return bool(model.variables) and all(id(each) in self._shared for each in model.variables)

    def trained(self, model: keras.Model) -> list[str]:
        """Return the paths of the shared variables that a model trains."""
        return [each.path for each in model.trainable_variables if id(each) in self._shared]

    def _at_first(self, variable: Any) -> np.ndarray:
        """The value of a variable at the start."""
        known = self._shared.get(id(variable))
        return _before_training(variable) if known is None else known[1]


def build_called(build: Callable[[], keras.Model], inputs: Any) -> keras.Model:
    """Return a new model, called once if only a call makes its variables."""
    model = build()
    if inputs is not None and not model.built:
        # its variables are made by the first call; a model that has no call makes them itself
        with suppress(Exception):
            model(inputs, training=False)
    return model


def _specs(inputs: Any) -> Any:
    """The shapes and dtypes of inputs; `None` where zeros cannot stand for them."""
    if inputs is None:
        return None
    specs = tf.nest.map_structure(tf.type_spec_from_value, inputs)
    dense = all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(specs))
    return specs if dense else None


def _zeros(specs: Any) -> Any:
    """Inputs of such shapes, of zeros."""
    if specs is None:
        return None
    return tf.nest.map_structure(lambda each: tf.zeros(each.shape, each.dtype), specs)


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


def _beginning(variable: Any) -> bytes:
    """The first numbers of a variable, which a training changes."""
    values = tf.reshape(keras_private.tensorflow_variable(variable), [-1])[:FIRST_NUMBERS]
    return bytes(np.asarray(values).tobytes())


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


@contextmanager
def seed_scope(seed: int) -> Iterator[None]:
    """Seed Python, NumPy, TensorFlow and Keras, and restore the state of all four afterwards.

    Keras draws the seeds of initializers and of Dropout from Python's generator.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    tensorflow_state = tensorflow_private.seed_state()
    keras_state = keras_private.global_attributes(keras_private.SEEDS)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.random.set_seed(seed)
    keras_private.set_global_attributes(dict.fromkeys(keras_private.SEEDS))
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        tensorflow_private.set_seed_state(tensorflow_state)
        keras_private.set_global_attributes(keras_state)
