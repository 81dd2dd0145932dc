"""Shape: of one example, as the command line writes it."""

from __future__ import annotations

from kbatch.errors import DataError


def example_shape(text: str) -> tuple[int, ...]:
    """The lengths that `--shape` says, without the batch.

    Args:
        text: Whole numbers of at least 1, separated by commas.

    Raises:
        DataError: If it says something else.

    Example:
    >>> example_shape("224,224,3")
    (224, 224, 3)
    """
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        sizes = (0,)
    if min(sizes) < 1:
        raise DataError("--shape must be whole numbers of at least 1", text, "Write the shape of one example, without the batch: 224,224,3")
    return sizes
