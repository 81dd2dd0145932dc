"""Batch sizes as arguments: checked, and bounded by the data."""

from __future__ import annotations

from kbatch.errors import MemoryLimitError
from kbatch.recipe_fields import whole_number


def check_size(name: str, size: int | None) -> int | None:
    """Return a batch size, or `None` if there is none.

    Args:
        name: Name of the argument, for the error.
        size: Batch size, or `None`.

    Raises:
        MemoryLimitError: If it is not a whole number of at least 1.
    """
    if size is None:
        return None
    whole = whole_number(size)
    if whole is None:
        raise MemoryLimitError(
            f"`{name}` must be a whole number of at least 1",
            size,
            "Pass a batch size, or leave it out",
        )
    return whole


def lower(one: int | None, other: int | None) -> int | None:
    """The lower of two bounds, each of which may be missing."""
    return min((bound for bound in (one, other) if bound is not None), default=None)
