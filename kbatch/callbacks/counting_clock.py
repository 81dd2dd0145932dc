"""The counting clock, on which an example takes one second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kbatch.callbacks.training_clock import TrainingClock


class CountingClock:
    """A clock for a `Horizon` of examples instead of seconds.

    Each example counts as one second, so that the training ends with the update that reaches the
    last example. All other attributes are those of the training clock.

    Args:
        clock: `TrainingClock` of the training.
        examples: Function that returns the number of examples trained on so far.
    """

    def __init__(self, clock: TrainingClock, examples: Callable[[], int]) -> None:
        self._clock, self._examples = clock, examples
        self._seconds_at: dict[float, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    @property
    def seconds(self) -> float:
        """Float, number of examples so far."""
        examples = float(self._examples())
        self._seconds_at[examples] = self._clock.seconds
        return examples

    @property
    def median_update_seconds(self) -> float | None:
        """Float, 1 after the first update, `None` before it."""
        return 1.0 if self._clock.updates else None

    def in_seconds(self, curve: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
        """Convert a curve over examples into a curve over seconds of the training clock."""
        return tuple((self._seconds_at[examples], value) for examples, value in curve)
