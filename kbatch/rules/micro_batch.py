"""The micro-batch rule: equal passes for a batch above a limit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kbatch.errors import SpaceError

# times the fewest passes that the limit allows; chosen by hand, not tuned
MOST_PASSES = 2


def size_of(batch_size: int, limit: int | None) -> int | None:
    """Return the largest divisor of a batch size within the limit; `None` if the batch is within.

    Example:
    >>> size_of(96, 40), size_of(32, 40), size_of(96, None)
    (32, None, None)
    """
    if limit is None or batch_size <= limit:
        return None
    return max(size for size in range(1, limit + 1) if batch_size % size == 0)


def check(batch_sizes: Sequence[int], limit: int) -> None:
    """Refuse batch sizes that need many more passes than the limit requires.

    Args:
        batch_sizes: Sequence of integers, examples per weight update.
        limit: Integer, examples per pass at most.

    Raises:
        SpaceError: If a batch size needs too many; the message suggests another size.
    """
    for size in batch_sizes:
        passes, fewest = size // (size_of(size, limit) or size), math.ceil(size / limit)
        if passes > MOST_PASSES * fewest:
            raise SpaceError(
                f"A batch above `micro_batch_size`, {limit}, must have a divisor near it",
                f"{size}, which takes {passes} passes of {size // passes} where {fewest} would do",
                f"Pass multiples of {limit}, such as {fewest * limit}, as `batch_size`",
            )


def by_noise(batch_size: int, limit: int | None) -> int | None:
    """Return the micro-batch of a batch that grows by its noise, in two passes or more.

    Example:
    >>> by_noise(64, None), by_noise(64, 16), by_noise(15, None)
    (32, 16, 5)
    """
    return size_of(batch_size, min(limit or batch_size, batch_size // 2))


def check_halves(batch_sizes: Sequence[int]) -> None:
    """Refuse batches that cannot be taken in a few passes, for a batch that grows by its noise.

    Args:
        batch_sizes: Sequence of integers, examples per weight update.

    Raises:
        SpaceError: If a batch is of one example, or has no divisor near its half.
    """
    if min(batch_sizes) == 1:
        raise SpaceError(
            "A batch that grows by the noise scale must have two examples or more",
            f"batch_size={tuple(batch_sizes)}",
            "Leave out batches of 1",
        )
    for size in batch_sizes:
        passes = size // (by_noise(size, None) or size)
        if passes > MOST_PASSES * math.ceil(size / (size // 2)):
            raise SpaceError(
                "A batch that grows by the noise scale must have a divisor near its half",
                f"{size}, which takes {passes} passes of {size // passes}",
                f"Pass an even batch size, such as {size + size % 2}",
            )
