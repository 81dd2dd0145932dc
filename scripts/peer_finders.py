"""The peers' ways to look for the largest batch, with kbatch's probes, for the benchmark."""

from __future__ import annotations

from collections.abc import Callable

from kbatch.memory._max_batch import Probe, SearchResult
from kbatch.memory._search import Sizes, tried

SHRINK = 0.9
DOUBLE_START, SHRINK_START = 2, 128


def searched(sizes: Sizes, probe: Callable[[int], Probe]) -> SearchResult:
    """The largest of these sizes that passed."""
    return SearchResult.of(tried(sizes, lambda size: [probe(size)]))


def double(ceiling: int) -> Sizes:
    """Double from 2 until a size fails, and answer the last that passed: Lightning's `power`."""
    size, passed = min(DOUBLE_START, ceiling), False
    while True:
        if (yield size).passed:
            if 2 * size > ceiling:
                return
            size, passed = 2 * size, True
        else:
            if passed or size == 1:
                return
            size //= 2


def bisect(ceiling: int) -> Sizes:
    """Double from 2 until a size fails, then bisect down to 1: Lightning's `binsearch`."""
    size, low, high = min(DOUBLE_START, ceiling), 1, None
    while True:
        if (yield size).passed:
            low = size
            if (high is not None and high - low <= 1) or size >= ceiling:
                return
            size = min(ceiling, 2 * size) if high is None else (high + low) // 2
        else:
            high = size
            if high - low <= 1:
                if low == 1 and high == 2:
                    yield 1  # Lightning answers 1 here without having tried it
                return
            size = (high + low) // 2


def shrink(ceiling: int) -> Sizes:
    """Shrink by a tenth from 128 until a size passes.

    This is accelerate's `find_executable_batch_size`.
    """
    size = min(SHRINK_START, ceiling)
    while size >= 1 and not (yield size).passed:
        size = int(size * SHRINK)


PEERS: dict[str, Callable[[int], Sizes]] = {"double": double, "bisect": bisect, "shrink": shrink}
