"""Seed scope: one seed for weights and dropout inside a `with`; the user's own generators are restored afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from keras.src.backend.common import global_state
from tensorflow.python.eager import context

KERAS_STATE = ("global_random_seed", "global_seed_generator")


@contextmanager
def seed_scope(seed: int) -> Iterator[None]:
    """Seed Python, NumPy, TensorFlow and Keras, and put the state of all four back afterwards.

    Keras draws the seeds of initializers and of Dropout from Python's generator. TensorFlow's and
    Keras' global seeds cannot be read publicly, so this module alone touches them.

    Args:
        seed: Integer, the seed inside the `with`.
    """
    tensorflow_context = context.context()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    tensorflow_state = {
        name: tensorflow_context.__dict__[name]
        for name in ("_seed", "_rng")
        if name in tensorflow_context.__dict__
    }
    keras_state = {name: global_state.get_global_attribute(name) for name in KERAS_STATE}
    random.seed(seed)
    np.random.seed(seed % 2**32)
    tensorflow_context._set_global_seed(seed)
    for name in KERAS_STATE:
        global_state.set_global_attribute(name, None)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        for name in ("_seed", "_rng"):
            tensorflow_context.__dict__.pop(name, None)
        tensorflow_context.__dict__.update(tensorflow_state)
        for name, value in keras_state.items():
            global_state.set_global_attribute(name, value)
