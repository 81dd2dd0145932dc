"""Option: what the command line calls an axis, and how its text is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kbatch import number_text
from kbatch.errors import SearchError


@dataclass(frozen=True)
class Range:
    """Numbers between two, drawn evenly on a log scale.

    Attributes:
        lowest: Float above 0.
        highest: Float above `lowest`.
    """

    lowest: float
    highest: float


@dataclass(frozen=True)
class Option:
    """The option of the command line that gives the values of an axis.

    Attributes:
        name: String, such as `"batch-sizes"`.
        help: String, what `--help` says.
        read: Function of the option's name and its text; returns the values.
        default: String, the text if the option is left out; `None` if something else decides then.
        default_words: String, what `--help` says of a default that is decided elsewhere.
    """

    name: str
    help: str
    read: Callable[[str, str], Any]
    default: str | None = None
    default_words: str = ""

    @property
    def parameter(self) -> str:
        """The option's name as a name of Python's, such as `"batch_sizes"`."""
        return self.name.replace("-", "_")


def names(allowed: tuple[str, ...]) -> Callable[[str, str], tuple[str, ...]]:
    """A reader of an option that holds names, separated by commas."""

    def read(option: str, text: str) -> tuple[str, ...]:
        found = tuple(name.strip() for name in text.split(",") if name.strip())
        if not found or any(name not in allowed for name in found):
            raise SearchError(
                f"{option} must be names out of {', '.join(allowed)}",
                text,
                "Separate them by commas",
            )
        return found

    return read


def words(option: str, text: str) -> tuple[str, ...]:
    """The words of an option, separated by commas, for the axis to check."""
    return tuple(part.strip() for part in text.split(","))


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The whole numbers of an option, separated by commas."""
    return number_text.sizes_of(option, text, "Separate them by commas: 32,64,128")


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The numbers of an option, separated by commas."""
    found = [number_text.number(part) for part in text.split(",")]
    if None in found:
        raise SearchError(f"{option} must be numbers", text, "Separate them by commas: 0,0.1")
    return tuple(number for number in found if number is not None)


def one_of(meanings: Mapping[str, tuple[Any, ...]]) -> Callable[[str, str], tuple[Any, ...]]:
    """A reader of an option that is one word, each of which stands for values."""

    def read(option: str, text: str) -> tuple[Any, ...]:
        if text not in meanings:
            raise SearchError(
                f"{option} must be one of {', '.join(meanings)}", text, "Pass one of these names"
            )
        return meanings[text]

    return read


def between(least: float, most: float) -> Callable[[str, str], Range]:
    """A reader of an option that is two numbers, such as `0.001:0.1`."""

    def read(option: str, text: str) -> Range:
        numbers = [number_text.number(part) or 0.0 for part in text.split(":")]
        if len(numbers) != 2 or not least <= numbers[0] < numbers[1] <= most:
            must = f"{option} must be two rates from {least:g} to {most:g}, the lower first"
            raise SearchError(must, text, "Write them as 0.001:0.1")
        return Range(*numbers)

    return read
