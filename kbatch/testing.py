"""Testing: fakes for users' own tests, so that time need not pass in them."""

from __future__ import annotations

__all__ = ["FakeTime"]


class FakeTime:
    """A time that passes only when told, for `TrainingClock(now=…)` and `Horizon(now=…)`.

    Args:
        seconds: Float, what it shows at first. Defaults to `0.0`.

    Example:
    >>> now = FakeTime()
    >>> now.sleep(2.5)
    >>> now()
    2.5
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        """The time in seconds."""
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.seconds += seconds
