"""Restored model: weights, optimizer and plan are put back after some steps of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from kbatch.errors import RecomputeError
from kbatch.recompute._apply import applied, apply, remove
from kbatch.runtime import tensorflow_private


@contextmanager
def restored(model: keras.Model) -> Iterator[Callable[[], None]]:
    """Restore a model at the end of a `with` block; inside it has no plan.

    The block gets a function that restores weights and optimizer in between.

    Args:
        model: `keras.Model`, built and compiled.

    Raises:
        RecomputeError: If the model is not compiled.
    """
    if not model.compiled:
        raise RecomputeError(
            "A model must be compiled to be trained some steps",
            f"{model.name!r}, which is not",
            "Call model.compile first",
        )
    before = applied(model)
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    values = [np.array(variable) for variable in variables]

    def restore() -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    remove(model)
    try:
        with tensorflow_private.expected_retraces():
            yield restore
    finally:
        restore()
        remove(model)
        model.train_function = None
        if before is not None:
            apply(model, before)


def batch_size_of(x: Any) -> int:
    """Number of examples in a batch.

    Raises:
        RecomputeError: If there are none.
    """
    shapes = [np.shape(part) for part in keras.tree.flatten(x) if part is not None]
    if not shapes or not all(shape and shape[0] for shape in shapes):
        raise RecomputeError(
            "A batch must have at least one example",
            f"inputs of shape {', '.join(map(str, shapes)) or 'none'}",
            "Pass a batch, such as x[:16]",
        )
    return int(shapes[0][0])
