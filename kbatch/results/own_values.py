"""The hyperparameters of a trial that the user declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbatch.axes import RESERVED
from kbatch.records.store import Record


def own_values(record: Record) -> dict[str, Any]:
    """Return the user's own hyperparameters of a training.

    In records of old versions the baseline has none: it took the defaults.
    """
    return {
        name: value
        for name, value in record.values.items()
        if name not in RESERVED and not name.startswith("tuner/")
    }


def own_words(record: Record) -> str:
    """Return the user's own hyperparameters in words, such as "units 64, dropout 0.2"."""
    return words_of(own_values(record))


def words_of(values: Mapping[str, Any]) -> str:
    """Return values by name in words, such as "units 64, dropout 0.2"."""
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def apart(one: Record, other: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the own values in which two trainings differ: those of the one, and of the other.

    A value that only one of them has is of no effect unless another differs, such as the number of
    layers: then it counts.

    Args:
        one: Record of a training.
        other: Record of the other training.
    """
    first, second = own_values(one), own_values(other)
    if all(first[name] == second[name] for name in first.keys() & second.keys()):
        return {}, {}
    return (
        {name: value for name, value in first.items() if second.get(name) != value},
        {name: value for name, value in second.items() if first.get(name) != value},
    )
