"""The running median of numbers that come one by one."""

from __future__ import annotations

import heapq


class RunningMedian:
    """Median of all numbers added so far; an addition takes logarithmic time.

    Example:
    >>> median = RunningMedian()
    >>> for number in (5.0, 1.0, 2.0):
    ...     median.add(number)
    >>> median.value
    2.0
    """

    def __init__(self) -> None:
        self._lower: list[float] = []  # negated: `heapq` has the smallest number first
        self._upper: list[float] = []

    def add(self, number: float) -> None:
        """Add a number."""
        heapq.heappush(self._upper, -heapq.heappushpop(self._lower, -number))
        if len(self._upper) > len(self._lower):
            heapq.heappush(self._lower, -heapq.heappop(self._upper))

    @property
    def value(self) -> float | None:
        """Float, the median; `None` before the first number."""
        if not self._lower:
            return None
        if len(self._lower) > len(self._upper):
            return -self._lower[0]
        return (self._upper[0] - self._lower[0]) / 2
