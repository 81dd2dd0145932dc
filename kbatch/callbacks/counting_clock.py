"""Counting clock: weight updates in the place of seconds, for a training that is to make so many of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbatch.callbacks.training_clock import TrainingClock


class CountingClock:
    """What a `Horizon` asks of a clock, with each update counted as one second; all else is the clock's own.

    Args:
        clock: `TrainingClock` that is running.
    """

    def __init__(self, clock: TrainingClock) -> None:
        self._clock = clock
        self._seconds_at: dict[float, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    @property
    def seconds(self) -> float:
        """Updates so far."""
        updates = float(self._clock.updates)
        self._seconds_at[updates] = self._clock.seconds
        return updates

    @property
    def median_update_seconds(self) -> float | None:
        """What an update takes: one, once there is any."""
        return 1.0 if self._clock.updates else None

    def in_seconds(self, curve: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
        """A curve over updates as one over seconds on the clock."""
        return tuple((self._seconds_at[updates], value) for updates, value in curve)
