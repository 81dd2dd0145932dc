"""Sizes: whole numbers separated by commas, as the command line takes them."""

from __future__ import annotations

from kbatch.errors import DataError


def sizes_of(option: str, text: str, remedy: str) -> tuple[int, ...]:
    """The sizes that an option says.

    Args:
        option: Its name, for the error.
        text: Whole numbers of at least 1, separated by commas.
        remedy: What to do about another text, for the error.

    Raises:
        DataError: If it says something else.

    Example:
    >>> sizes_of("--batch-sizes", "32,64", "Separate them by commas")
    (32, 64)
    """
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        sizes = (0,)
    if min(sizes) < 1:
        raise DataError(f"{option} must be whole numbers of at least 1", text, remedy)
    return sizes


def example_shape(text: str) -> tuple[int, ...]:
    """The shape of one example, without the batch, that `--shape` says.

    Args:
        text: Whole numbers of at least 1, separated by commas.

    Raises:
        DataError: If it says something else.

    Example:
    >>> example_shape("224,224,3")
    (224, 224, 3)
    """
    return sizes_of("--shape", text, "Write the shape of one example, without the batch: 224,224,3")
