"""Layer names: the ones that Keras gives by itself, counted anew for every model of a `build`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import keras
from keras.src.backend.common import global_state

COUNTERS = "object_name_uids"
NOT_UNIQUE = re.compile("unique names|names should be unique")


@contextmanager
def counting_anew() -> Iterator[None]:
    """Name inside the `with` as in a fresh process, and go on counting afterwards where the user's process was.

    Keras numbers what has no name (`auc`, `auc_1`, …), so that the same `build` gives other
    metrics' names each time.
    """
    counted = global_state.get_global_attribute(COUNTERS)
    global_state.set_global_attribute(COUNTERS, None)
    try:
        yield
    finally:
        global_state.set_global_attribute(COUNTERS, counted)


def collide(error: Exception) -> bool:
    """Whether names given anew are those of layers made before, outside of `build`."""
    return isinstance(error, ValueError) and NOT_UNIQUE.search(str(error)) is not None


def snake_case(name: str) -> str:
    """The name that Keras makes of a class's.

    >>> snake_case("MeanSquaredError"), snake_case("AUC")
    ('mean_squared_error', 'auc')
    """
    return re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)).lower()


def without_number(named: keras.metrics.Metric) -> str:
    """The name of a metric without the number that Keras adds to names of its own; names of the user's stay.

    >>> without_number(keras.metrics.AUC(name="auc_3")), without_number(keras.metrics.AUC(name="area_2"))
    ('auc', 'area_2')
    """
    own = snake_case(type(named).__name__)
    return own if re.fullmatch(rf"{own}_\d+", str(named.name)) else str(named.name)
