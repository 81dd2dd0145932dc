"""The counting clock, on which a weight update takes one second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbatch.callbacks.training_clock import TrainingClock


class CountingClock:
    """A clock for a `Horizon` of weight updates instead of seconds.

    Each update counts as one second. All other attributes are those of the training clock.

    Args:
        clock: `TrainingClock` of the training.
    """

    def __init__(self, clock: TrainingClock) -> None:
        self._clock = clock
        self._seconds_at: dict[float, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    @property
    def seconds(self) -> float:
        """Float, number of updates so far."""
        updates = float(self._clock.updates)
        self._seconds_at[updates] = self._clock.seconds
        return updates

    @property
    def median_update_seconds(self) -> float | None:
        """Float, 1 after the first update, `None` before it."""
        return 1.0 if self._clock.updates else None

    def in_seconds(self, curve: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
        """Convert a curve over updates into a curve over seconds of the training clock."""
        return tuple((self._seconds_at[updates], value) for updates, value in curve)
