"""Compiled size: the largest batch size that fits by XLA's own numbers, from a few compilations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbatch.memory._margins import MARGINS, Margins
from kbatch.memory._probe import ModelFacts
from kbatch.memory._xla import TOO_LARGE

# Chosen by hand. Where needs are convex, six compilations reach brute force's answer within 1
# (tests/test_compiled_size.py).
FIRST_SIZE, MOST_COMPILATIONS = 16, 6


@dataclass(frozen=True)
class CompiledSize:
    """The largest batch size that fits when XLA compiles the step.

    Attributes:
        batch_size: Integer; 0 if not even one example fits.
        slope: Float, bytes that each example adds near that size.
        compilations: Integer, batch sizes that were compiled.
    """

    batch_size: int
    slope: float
    compilations: int

    def with_added(self, added_bytes: int, margins: Margins = MARGINS) -> int:
        """The largest batch size while some more bytes are held: computed, hence a margin lower."""
        return max(0, int((self.batch_size - added_bytes / self.slope) * margins.computed))


def compiled_size(
    compiled_bytes: Callable[[int], int], model: ModelFacts, ceiling: int
) -> CompiledSize:
    """Compile a few batch sizes, run none, and return the largest that fits.

    Args:
        compiled_bytes: Function that compiles a batch size and returns the bytes of all buffers.
        model: `ModelFacts`. XLA's temporary buffers are one block, so its `contiguous_bytes` bound
            them.
        ceiling: Integer, the largest batch size that may be tried.
    """
    room = model.contiguous_bytes + model.static_bytes
    known, size = {0: model.static_bytes}, min(FIRST_SIZE, ceiling)
    slope = 1.0
    for _ in range(MOST_COMPILATIONS):
        known[size] = compiled_bytes(size)
        low, high = _nearest(known, room)
        slope = max((known[high] - known[low]) / (high - low), 1.0)
        if known[high] >= TOO_LARGE:
            size = (low + high) // 2  # too large to be compiled: no line leads through it
            continue
        size = max(0, min(ceiling, int(low + (room - known[low]) / slope)))
        if size in known or any(abs(size - other) <= 1 for other in known if other):
            break
    return CompiledSize(size, slope, len(known) - 1)


def _nearest(known: dict[int, int], room: float) -> tuple[int, int]:
    """The two sizes to draw a line through: on both sides of the room, else the two largest."""
    fitting = [size for size in known if known[size] <= room]
    failing = [size for size in known if known[size] > room]
    if fitting and failing:
        return max(fitting), min(failing)
    two_largest = sorted(known)[-2:]
    return two_largest[0], two_largest[1]
