"""The clock of a growing batch, whose next update takes longer than the median of all."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from kbatch.callbacks.training_clock import TrainingClock

RECENT = 5  # updates; chosen by hand, not tuned


class GrowingClock:
    """A clock for a `Horizon` that expects the next update to take as long as its batch is large.

    All attributes but the median are those of the training clock.

    Args:
        clock: `TrainingClock` of the training.
        size: Function from the number of an update, counted from 0, to its batch size.
    """

    def __init__(self, clock: TrainingClock, size: Callable[[int], int]) -> None:
        self._clock, self._size = clock, size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    @property
    def median_update_seconds(self) -> float | None:
        """Float, seconds that the next update will take, by the last five.

        `None` before the second update.
        """
        updates = self._clock.updates
        recent = range(max(updates - RECENT, 1), updates)
        if not recent:
            return None
        following = self._size(updates)
        return statistics.median(
            self._clock.update_seconds[update] * following / self._size(update) for update in recent
        )
