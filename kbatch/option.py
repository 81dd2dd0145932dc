"""The command-line option of an axis, and the readers of its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kbatch import number_text
from kbatch.errors import SearchError


@dataclass(frozen=True)
class Range:
    """A range of numbers, drawn evenly on a log scale.

    Attributes:
        lowest: Float above 0, the smallest number.
        highest: Float above `lowest`, the largest number.
    """

    lowest: float
    highest: float


@dataclass(frozen=True)
class Option:
    """The option of the command line that gives the values of an axis.

    Attributes:
        name: String, such as `"batch-sizes"`.
        help: String, the text in `--help`.
        read: Function that takes the name of the option and its text, and returns the values.
        default: String, the text if the option is left out; `None` if the default is decided
            elsewhere.
        default_words: String, description in `--help` of a default that is decided elsewhere.
    """

    name: str
    help: str
    read: Callable[[str, str], Any]
    default: str | None = None
    default_words: str = ""

    @property
    def parameter(self) -> str:
        """String, the name as a parameter of a Python function, such as `"batch_sizes"`."""
        return self.name.replace("-", "_")


def names(allowed: tuple[str, ...]) -> Callable[[str, str], tuple[str, ...]]:
    """Return a reader of names, separated by commas."""

    def read(option: str, text: str) -> tuple[str, ...]:
        given = tuple(name.strip() for name in text.split(",") if name.strip())
        if not given or any(name not in allowed for name in given):
            raise SearchError(
                f"{option} must be names out of {', '.join(allowed)}",
                text,
                "Separate them by commas",
            )
        return given

    return read


def words(option: str, text: str) -> tuple[str, ...]:
    """Read words, separated by commas, which the axis checks."""
    return tuple(part.strip() for part in text.split(","))


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Read whole numbers, separated by commas."""
    return number_text.sizes_of(option, text, "Separate them by commas: 32,64,128")


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Read numbers, separated by commas."""
    given = [number_text.number(part) for part in text.split(",")]
    if None in given:
        raise SearchError(f"{option} must be numbers", text, "Separate them by commas: 0,0.1")
    return tuple(number for number in given if number is not None)


def numbers_or_none(option: str, text: str) -> tuple[float | None, ...]:
    """Read numbers, separated by commas; 0 stands for `None`."""
    return tuple(number or None for number in numbers(option, text))


def one_of(meanings: Mapping[str, tuple[Any, ...]]) -> Callable[[str, str], tuple[Any, ...]]:
    """Return a reader of one word that stands for several values."""

    def read(option: str, text: str) -> tuple[Any, ...]:
        if text not in meanings:
            raise SearchError(
                f"{option} must be one of {', '.join(meanings)}", text, "Pass one of these names"
            )
        return meanings[text]

    return read


def between(least: float, most: float) -> Callable[[str, str], Range]:
    """Return a reader of two numbers, such as `0.001:0.1`."""

    def read(option: str, text: str) -> Range:
        numbers = [number_text.number(part) or 0.0 for part in text.split(":")]
        if len(numbers) != 2 or not least <= numbers[0] < numbers[1] <= most:
            must = f"{option} must be two rates from {least:g} to {most:g}, the lower first"
            raise SearchError(must, text, "Write them as 0.001:0.1")
        return Range(*numbers)

    return read
