"""Private names of Keras that kbatch needs, one small function for each.

Each function says which file of which release the name was read in; `tests/test_keras_private.py`
fails when a release takes one away.
"""

from __future__ import annotations

from typing import Any


def has_schedule(optimizer: Any) -> bool:
    """Return whether an optimizer's learning rate is a schedule.

    Its property `learning_rate` computes the schedule's value and hides the schedule, which is in
    `_learning_rate` (keras/src/optimizers/base_optimizer.py, Keras 3.15.1).
    """
    import keras

    rate = getattr(optimizer, "_learning_rate", None)
    return isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)


def output_names(model: Any) -> tuple[str, ...]:
    """Return the names of a model's outputs; empty for a model without a graph of layers.

    A `Sequential` has them in its functional twin `_functional` (keras/src/models/sequential.py,
    Keras 3.15.1).
    """
    functional = model if hasattr(model, "output_names") else getattr(model, "_functional", None)
    return tuple(getattr(functional, "output_names", ()))
