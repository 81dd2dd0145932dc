"""Micro-batch: the equal passes that a batch above a limit is accumulated over."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kbatch.errors import SpaceError

MOST_PASSES = 2  # times the fewest that the limit allows, above which a batch size divides badly


def size_of(batch_size: int, limit: int | None) -> int | None:
    """The largest divisor of a batch size that is within the limit; `None` if the whole batch is.

    Example:
    >>> size_of(96, 40), size_of(32, 40), size_of(96, None)
    (32, None, None)
    """
    if limit is None or batch_size <= limit:
        return None
    return max(size for size in range(1, limit + 1) if batch_size % size == 0)


def check(batch_sizes: Sequence[int], limit: int) -> None:
    """Refuse batch sizes that need many more passes than the limit asks for.

    Raises:
        SpaceError: If one does; the message names one that does not.
    """
    for size in batch_sizes:
        passes, fewest = size // (size_of(size, limit) or size), math.ceil(size / limit)
        if passes > MOST_PASSES * fewest:
            raise SpaceError(
                f"A batch above `micro_batch_size`, {limit}, must have a divisor near it",
                f"{size}, which takes {passes} passes of {size // passes} where {fewest} would do",
                f"Pass multiples of {limit}, such as {fewest * limit}, as `batch_size`",
            )
