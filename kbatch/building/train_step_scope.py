"""The train step scope: a `with` block in which a model trains by another train step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from kbatch.building.instance_method import replaced


@contextmanager
def stepping(model: keras.Model, train_step: Callable[[Any], Any]) -> Iterator[None]:
    """Let a model train by another train step inside the `with` block; such blocks may be nested.

    The method `train_step` is set on the instance. The model object, its layers and its saved file
    stay the same, and the step that it had before is put back.

    Args:
        model: Compiled `keras.Model`.
        train_step: Function of one batch, as Keras' `train_step`.
    """
    model.train_function = None  # a step that is compiled already would go on as before
    try:
        with replaced(model, "train_step", train_step):
            yield
    finally:
        model.train_function = None
