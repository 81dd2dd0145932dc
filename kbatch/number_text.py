"""Numbers in the texts of command-line options."""

from __future__ import annotations

import math
import re

from kbatch.errors import DataError

MOST = (1 << 31) - 1  # the largest int32, in which TensorFlow counts
# of one example: a gigabyte in float32; chosen by hand, not tuned
MOST_VALUES, MOST_AXES = 1 << 28, 8


def whole(text: str) -> int | None:
    """Read a whole number of plain digits; `None` for another text.

    `int` alone would accept `1_0` and digits of other scripts.

    Example:
    >>> whole("32"), whole("-1"), whole("1_0"), whole("²")
    (32, -1, None, None)
    """
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,300}", text.strip()) else None


def number(text: str) -> float | None:
    """Read a finite number; `None` for another text.

    Example:
    >>> number("0.5"), number("1e-3"), number("nan"), number("1e999")
    (0.5, 0.001, None, None)
    """
    plain = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?", text.strip())
    value = float(text) if plain else math.inf
    return value if math.isfinite(value) else None


def shortest(value: float) -> str:
    """Write a number in the one way in which it is shortest.

    Example:
    >>> shortest(8.0), shortest(0.050), shortest(1e-5)
    ('8', '0.05', '1e-05')
    """
    return repr(float(value)).removesuffix(".0")


def sizes_of(option: str, text: str, remedy: str) -> tuple[int, ...]:
    """Read the sizes in the text of an option.

    Args:
        option: String, name of the option, for the error.
        text: String, whole numbers of at least 1, separated by commas.
        remedy: String, what to do about another text, for the error.

    Raises:
        DataError: If the text is another.

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
    """Read the shape of one example, without the batch dimension, in the text of `--shape`.

    Args:
        text: String, whole numbers of at least 1, separated by commas.

    Raises:
        DataError: If the text is another, or the shape is too large for an example.

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
