"""Sizes: numbers, and whole numbers separated by commas, as the command line takes them."""

from __future__ import annotations

import math
import re

from kbatch.errors import DataError

MOST = (1 << 31) - 1  # what TensorFlow counts with
MOST_VALUES, MOST_AXES = 1 << 28, 8  # of one example: a gigabyte in float32


def whole(text: str) -> int | None:
    """The whole number that a text of plain digits is, or `None`; Python itself would take `1_0`, and digits of other scripts.

    Example:
    >>> whole("32"), whole("-1"), whole("1_0"), whole("²")
    (32, -1, None, None)
    """
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,300}", text.strip()) else None


def number(text: str) -> float | None:
    """The finite number that a text is, or `None`.

    Example:
    >>> number("0.5"), number("1e-3"), number("nan"), number("1e999")
    (0.5, 0.001, None, None)
    """
    value = (
        float(text)
        if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?", text.strip())
        else math.inf
    )
    return value if math.isfinite(value) else None


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
    sizes = [whole(size) or 0 for size in text.split(",")]
    if min(sizes) < 1:
        raise DataError(f"{option} must be whole numbers of at least 1", text, remedy)
    if max(sizes) > MOST:
        raise DataError(f"{option} must be whole numbers of at most {MOST}", text, remedy)
    return tuple(sizes)


def example_shape(text: str) -> tuple[int, ...]:
    """The shape of one example, without the batch, that `--shape` says.

    Args:
        text: Whole numbers of at least 1, separated by commas.

    Raises:
        DataError: If it says something else, or an example would be too large to be one.

    Example:
    >>> example_shape("224,224,3")
    (224, 224, 3)
    """
    remedy = "Write the shape of one example, without the batch: 224,224,3"
    shape = sizes_of("--shape", text, remedy)
    if math.prod(shape) > MOST_VALUES or len(shape) > MOST_AXES:
        raise DataError(
            f"--shape must be of at most {MOST_VALUES} values and {MOST_AXES} axes", text, remedy
        )
    return shape
