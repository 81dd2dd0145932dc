"""The peers' ways to look for the largest batch, with kbatch's probes, for the benchmark."""

from __future__ import annotations

from collections.abc import Callable

from kbatch.memory._max_batch import SearchResult
from kbatch.memory._next_size import Log, ProbeOf

SHRINK = 0.9
DOUBLE_START, SHRINK_START = 2, 128


def double(probe: ProbeOf, ceiling: int) -> SearchResult:
    """Double from 2 until a size fails, and answer the last that passed: Lightning's `power`."""
    log, size = Log(probe), min(DOUBLE_START, ceiling)
    while True:
        if log.passes(size):
            if 2 * size > ceiling:
                return log.result()
            size *= 2
        else:
            if any(earlier.passed for earlier in log.probes) or size == 1:
                return log.result()
            size //= 2


def bisect(probe: ProbeOf, ceiling: int) -> SearchResult:
    """Double from 2 until a size fails, then bisect down to 1: Lightning's `binsearch`."""
    log, size, low, high = Log(probe), min(DOUBLE_START, ceiling), 1, None
    while True:
        if log.passes(size):
            low = size
            if (high is not None and high - low <= 1) or size >= ceiling:
                return log.result()
            size = min(ceiling, 2 * size) if high is None else (high + low) // 2
        else:
            high = size
            if high - low <= 1:
                if low == 1 and high == 2:
                    log.passes(1)  # Lightning answers 1 here without having tried it
                return log.result()
            size = (high + low) // 2


def shrink(probe: ProbeOf, ceiling: int) -> SearchResult:
    """Shrink by a tenth from 128 until a size passes.

    This is accelerate's `find_executable_batch_size`.
    """
    log, size = Log(probe), min(SHRINK_START, ceiling)
    while size >= 1 and not log.passes(size):
        size = int(size * SHRINK)
    return log.result()


PEERS: dict[str, Callable[[ProbeOf, int], SearchResult]] = {
    "double": double,
    "bisect": bisect,
    "shrink": shrink,
}
