"""Fakes for users' own tests of callbacks."""

from __future__ import annotations

__all__ = ["FakeTime"]


class FakeTime:
    """A clock that moves only when a test tells it to.

    Pass it to `TrainingClock(now=…)` and `Horizon(now=…)`, so that a test of callbacks need not
    wait.

    Args:
        seconds: Float, the time at first. Defaults to `0.0`.

    Example:
    >>> now = FakeTime()
    >>> now.sleep(2.5)
    >>> now()
    2.5
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Move the clock forward.

        Args:
            seconds: Float, seconds to pass.
        """
        self.seconds += seconds
