"""Untouched: a compiled model left as it was, with its weights, optimizer and plan, whatever is trained meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import keras
import numpy as np

from kbatch.errors import RecomputeError
from kbatch.recompute.applying import applied, apply, remove


@contextmanager
def untouched(model: keras.Model) -> Iterator[Callable[[], None]]:
    """Give a model back as it was; meanwhile it has no plan, and the function that this yields sets it back in between.

    Args:
        model: `keras.Model`, built and compiled.

    Raises:
        RecomputeError: If the model is not compiled.
    """
    if not model.compiled:
        raise RecomputeError("A model must be compiled to be trained some steps", f"{model.name!r}, which is not", "Call model.compile first")
    before = applied(model)
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    values = [np.array(variable) for variable in variables]

    def restore() -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    remove(model)
    try:
        yield restore
    finally:
        restore()
        remove(model)
        model.train_function = None
        if before is not None:
            apply(model, before)
