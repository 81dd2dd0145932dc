"""The seed scope: a `with` block in which weights and dropout have one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from kbatch.runtime import keras_private, tensorflow_private


@contextmanager
def seed_scope(seed: int) -> Iterator[None]:
    """Seed Python, NumPy, TensorFlow and Keras, and restore the state of all four afterwards.

    Keras draws the seeds of initializers and of Dropout from Python's generator.

    Args:
        seed: Integer, the seed inside the `with` block.
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
