"""Names that Keras chooses for layers and metrics, counted afresh for every model of a `build`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import keras

from kbatch.runtime import keras_private

NOT_UNIQUE = re.compile("unique names|names should be unique")


@contextmanager
def fresh_names() -> Iterator[None]:
    """Let Keras choose names inside the `with` block as in a fresh process.

    Keras numbers layers and metrics without a name (`auc`, `auc_1`, …), so the same `build` would
    give other names each time. Afterwards Keras counts on from where it was before.
    """
    counted = keras_private.global_attributes([keras_private.NAME_COUNTERS])
    keras_private.set_global_attributes({keras_private.NAME_COUNTERS: None})
    try:
        yield
    finally:
        keras_private.set_global_attributes(counted)


def collide(error: Exception) -> bool:
    """Tell whether an error says that two layers, one made outside `build`, have one name."""
    return isinstance(error, ValueError) and NOT_UNIQUE.search(str(error)) is not None


def snake_case(name: str) -> str:
    """Return the name that Keras derives from the name of a class.

    >>> snake_case("MeanSquaredError"), snake_case("AUC")
    ('mean_squared_error', 'auc')
    """
    return re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)).lower()


def without_number(named: keras.metrics.Metric) -> str:
    """Return the name of a metric without the number that Keras adds; a user's own name stays.

    >>> without_number(keras.metrics.AUC(name="auc_3"))
    'auc'
    >>> without_number(keras.metrics.AUC(name="area_2"))
    'area_2'
    """
    own = snake_case(type(named).__name__)
    return own if re.fullmatch(rf"{own}_\d+", str(named.name)) else str(named.name)
