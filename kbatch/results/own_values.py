"""The hyperparameters of a trial that the user declared."""

from __future__ import annotations

from typing import Any

from kbatch.axes import RESERVED
from kbatch.records.record import Record


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
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in own_values(record).items()
    )
