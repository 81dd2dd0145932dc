"""BFC allocator: where TensorFlow's best-fit allocator with coalescing places allocations.

With XLA the temporary buffers of a step are one allocation. So the largest *contiguous* free block
decides what fits, and the block depends on where the variables lie. A limited CPU grows its memory
by regions that double; a GPU has one region. Read in TensorFlow 2.21.0:
`third_party/xla/xla/tsl/framework/bfc_allocator.cc` (`Extend`, `FindChunkPtr`, `SplitChunk`).
"""

from __future__ import annotations

from collections.abc import Iterable

ALIGNMENT = 256
FIRST_REGION = 2 << 20
# A chunk is split if it is twice as large as asked for, or larger by this much.
MOST_WASTED = 128 << 20


class Allocator:
    """Regions and chunks of a device."""

    def __init__(self, limit_bytes: int, first_region: int = FIRST_REGION) -> None:
        self.limit_bytes = limit_bytes
        self._next_region = min(first_region, limit_bytes)
        # of each region its chunks in order: [bytes, 1 if in use]
        self._regions: list[list[list[int]]] = []

    def allocate(self, size: int) -> list[int] | None:
        """Take a chunk of at least `size` bytes; `None` if there is none."""
        rounded = max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
        chunk = self._take(rounded)
        if chunk is None and self._extend(rounded):
            chunk = self._take(rounded)
        return chunk

    def free(self, chunk: list[int]) -> None:
        """Give a chunk back; free neighbours become one."""
        chunk[1] = 0
        for chunks in self._regions:
            merged: list[list[int]] = []
            for one in chunks:
                if merged and not merged[-1][1] and not one[1]:
                    merged[-1][0] += one[0]
                else:
                    merged.append(one)
            chunks[:] = merged

    def largest(self) -> int:
        """The largest allocation that would succeed now."""
        free = max(
            (chunk[0] for chunks in self._regions for chunk in chunks if not chunk[1]), default=0
        )
        return max(free, self._available() // ALIGNMENT * ALIGNMENT)

    def _available(self) -> int:
        return self.limit_bytes - sum(chunk[0] for chunks in self._regions for chunk in chunks)

    def _take(self, rounded: int) -> list[int] | None:
        fitting = [
            (chunk[0], region, index)
            for region, chunks in enumerate(self._regions)
            for index, chunk in enumerate(chunks)
            if _fits(chunk, rounded)
        ]
        if not fitting:
            return None
        size, region, index = min(fitting)
        chunks = self._regions[region]
        if size >= 2 * rounded or size - rounded >= MOST_WASTED:
            chunks.insert(index + 1, [size - rounded, 0])
            chunks[index][0] = rounded
        chunks[index][1] = 1
        return chunks[index]

    def _extend(self, rounded: int) -> bool:
        available = self._available() // ALIGNMENT * ALIGNMENT
        if rounded > available:
            return False
        increased = False
        while rounded > self._next_region:
            self._next_region *= 2
            increased = True
        self._regions.append([[min(self._next_region, available), 0]])
        if not increased:
            self._next_region *= 2
        return True


def contiguous(
    limit_bytes: int, variables: Iterable[tuple[int, bool]], first_region: int = FIRST_REGION
) -> int:
    """Bytes of the largest contiguous free block after variables are allocated in order.

    A randomly initialised variable needs three buffers for a moment (draw, scaled draw, final
    copy). A constant one needs one.
    """
    allocator = Allocator(limit_bytes, first_region)
    allocator.allocate(ALIGNMENT)  # a small constant of TensorFlow's own
    for size, drawn in variables:
        # The last of the three buffers is the variable's own.
        *before, value = (allocator.allocate(size) for _ in range(3 if drawn else 1))
        if value is None:
            return 0
        for chunk in before:
            if chunk is not None:
                allocator.free(chunk)
    return allocator.largest()


def _fits(chunk: list[int], rounded: int) -> bool:
    return not chunk[1] and chunk[0] >= rounded
