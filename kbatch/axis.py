"""Axis: one field of a recipe that is searched, its checks and its option."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbatch import plain_text
from kbatch.errors import RecipeError, SearchError, SpaceError
from kbatch.recipe_words import (
    CHECKS,
    PLAIN,
    STRATEGY_WORDS,
    Strategy,
    TrainingMethod,
    is_number,
    whole_number,
)


def among(name: str, allowed: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Return a check that allows these values only, and returns them as given here: `False` for 0.

    Example:
    >>> among("policy", ("float32", "mixed_float16"))("float32")
    'float32'
    """

    def check(value: Any) -> Any:
        if value not in allowed:
            raise SpaceError(
                f"`{name}` must be among {', '.join(map(str, allowed))}",
                value,
                "Pass these values only",
            )
        return allowed[allowed.index(value)]

    return check


def as_in_recipe(name: str) -> Callable[[Any], Any]:
    """Return the check of a recipe's field, as the check of an axis.

    Example:
    >>> as_in_recipe("momentum")(0)
    0.0
    """

    def check(value: Any) -> Any:
        try:
            return CHECKS[name](value)
        except RecipeError as error:
            raise SpaceError(error.must, error.received, error.do) from None

    return check


def batch_size_of(value: Any) -> int:
    """Check a batch size."""
    number = whole_number(value)
    if number is None:
        raise SpaceError(
            "Batch sizes must be whole numbers of at least 1",
            value,
            "Pass sizes such as (32, 64, 128)",
        )
    return number


def passes_of(value: Any) -> float:
    """Check passes of warm-up."""
    if not is_number(value) or value < 0:
        raise SpaceError(
            "`warmup_passes` must be numbers of at least 0",
            value,
            "Pass 0 for no warm-up, 1.0 for one pass",
        )
    return float(value)


def strategy_of(value: Any) -> Any:
    """Check a strategy of recompute, given in words."""
    parsed = Strategy.parse(value)
    if parsed is None:
        raise SpaceError(
            f"`recompute` must be among {STRATEGY_WORDS}", value, "Pass these values only"
        )
    return str(parsed)


def rate_of(value: Any) -> float:
    """Check a learning rate at batch 32."""
    if not is_number(value) or not 0 < value < math.inf:
        raise SpaceError(
            "`learning_rate` must hold finite numbers above 0", value, "Pass 0.01, say"
        )
    return float(value)


def method_in_memory(training: str) -> str:
    """Return the training method that stands for all that differ in numbers only.

    Example:
    >>> method_in_memory("proximal:0.5:7")
    'proximal:1'
    """
    method = TrainingMethod.parse(training)
    return PLAIN if method is None or method.name == PLAIN else f"{method.name}:1"


def average_in_memory(ema: float | None) -> float | None:
    """Return the moving average that stands for all: one takes as much memory as another.

    Example:
    >>> average_in_memory(0.9), average_in_memory(None)
    (0.99, None)
    """
    return None if ema is None else 0.99


def name_of(value: Any) -> Any:
    """Return the name of an augmentation, which `kbatch.HyperModel` checks later.

    The registered pipelines are in a module that imports TensorFlow.
    """
    return value


@dataclass(frozen=True)
class Range:
    """A range of numbers, drawn evenly on a log scale."""

    lowest: float  # above 0, the smallest number
    highest: float  # above `lowest`, the largest number


@dataclass(frozen=True)
class Option:
    """The option of the command line that gives the values of an axis."""

    name: str  # such as `"batch-sizes"`
    help: str  # the text in `--help`
    # function that takes the name of the option and its text, and returns the values
    read: Callable[[str, str], Any]
    # the text if the option is left out; `None` if the default is decided elsewhere
    default: str | None = None
    default_words: str = ""  # description in `--help` of a default that is decided elsewhere

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
    return plain_text.sizes_of(option, text, "Separate them by commas: 32,64,128")


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Read numbers, separated by commas."""
    given = [plain_text.number(part) for part in text.split(",")]
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
        numbers = [plain_text.number(part) or 0.0 for part in text.split(":")]
        if len(numbers) != 2 or not least <= numbers[0] < numbers[1] <= most:
            must = f"{option} must be two rates from {least:g} to {most:g}, the lower first"
            raise SearchError(must, text, "Write them as 0.001:0.1")
        return Range(*numbers)

    return read


RateAxis = float | tuple[float, float] | list[float]


def itself(value: Any) -> Any:
    """Return the value."""
    return value


@dataclass(frozen=True)
class Axis:
    """A setting that a search varies: an argument of `Space` and a hyperparameter of KerasTuner."""

    name: str  # name of the hyperparameter
    # function that returns a value as a recipe holds it, and raises `SpaceError` for a value that
    # is not allowed
    check: Callable[[Any], Any]
    # the default values; `None` if the machine or the data decide
    default: tuple[Any, ...] | None = None
    option: Option | None = None  # of `kbatch cats-vs-dogs`, or `None`
    in_recipe: bool = True  # whether a recipe has a field, and results a column, of this name
    # whether the setting changes the memory of a step of a given batch size
    decides_memory: bool = False
    # another axis' name and the values of it with which the axis is drawn; `None` if it
    # always is
    only_if: tuple[str, tuple[Any, ...]] | None = None
    preferred: Any = None  # the value that a tuner starts with, if it is in the search
    # name of the argument of `Space` that holds the values, by the one value of the other axis;
    # empty if the argument has the name of the axis
    of: str = ""
    # function from a value to the one that stands for all values with the same memory
    like_in_memory: Callable[[Any], Any] = itself
    # the value that KerasTuner holds for `None`, which it cannot hold; `None` if the axis does not
    # have that value
    absent: Any = None
    # whether the optimizer that the user's model is compiled with decides the setting for
    # `optimizer="compiled"`
    of_optimizer: bool = False
    # name of the property of `Space` that tells the values where this machine decides them; empty
    # if it never does
    of_machine: str = ""

    def values(self, given: Any) -> tuple[Any, ...]:
        """Check the user's argument, one value or several, and return a tuple of values."""
        several = tuple(given) if isinstance(given, (tuple, list, range)) else (given,)
        if self.absent is not None:
            several = tuple(None if value == self.absent else value for value in several)
        if not _are_different(several):
            raise self._repeated(given)
        checked = tuple(self.check(value) for value in several)
        if not _are_different(checked):  # in other spellings
            raise self._repeated(given)
        return checked

    def is_drawn(self, drawn: Mapping[str, Any]) -> bool:
        """Tell whether the axis is drawn, by the values of the axes before it."""
        return self.only_if is None or drawn[self.only_if[0]] in self.only_if[1]

    def _repeated(self, given: Any) -> SpaceError:
        return SpaceError(
            f"`{self.name}` must hold at least one value, each once",
            given,
            "Pass one value, or a tuple of different ones",
        )

    def declare(self, hp: Any, values: tuple[Any, ...] | Range) -> None:
        """Declare the axis as a hyperparameter."""
        if isinstance(values, Range):
            middle = (values.lowest * values.highest) ** 0.5
            hp.Float(self.name, values.lowest, values.highest, sampling="log", default=middle)
        elif isinstance(values[0], bool):
            hp.Boolean(self.name, default=values[0])
        else:
            held = [self.absent if value is None else value for value in values]
            hp.Choice(
                self.name, held, default=self.preferred if self.preferred in held else held[0]
            )

    def drawn(self, hp: Any, values: tuple[Any, ...] | Range) -> Any:
        """Return the value of the axis that hyperparameters hold, or its only one."""
        value = values[0] if is_fixed(values) else hp.get(self.name)  # type: ignore[index]
        absent = self.absent is not None and value == self.absent
        return self.check(None if absent else value)


def _are_different(values: tuple[Any, ...]) -> bool:
    try:
        return 0 < len(values) == len(set(values))
    except TypeError:
        return False


def is_fixed(values: tuple[Any, ...] | Range) -> bool:
    """Tell whether an axis has one value only, so that nothing is drawn."""
    return not isinstance(values, Range) and len(values) == 1


def plain(value: Any) -> Any:
    """Convert NumPy's arrays and scalars to lists and numbers, also inside tuples and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return type(value)(map(plain, value)) if type(value) in (tuple, list) else value


def rates_of(optimizer: str, given: Any) -> tuple[float, ...] | Range:
    """Read the learning rates of an optimizer: a range (tuple), a choice (list) or one number.

    Example:
    >>> rates_of("sgd", (0.01, 0.1))
    Range(lowest=0.01, highest=0.1)
    """
    several = list(given) if isinstance(given, (tuple, list)) else [given]
    numbers = bool(several) and all(is_number(rate) and rate > 0 for rate in several)
    if numbers and isinstance(given, tuple) and len(given) == 2 and given[0] < given[1]:
        return Range(*given)
    if numbers and not isinstance(given, tuple):
        return tuple(map(float, several))
    raise SpaceError(
        f'`learning_rate["{optimizer}"]` must be a range (lowest, highest), '
        "a list of rates, or one rate, all above 0",
        given,
        f'Pass {{"{optimizer}": (1e-4, 1e-1)}}, [0.001, 0.01] or 0.01',
    )


def by_optimizer(name: str, given: Any, known: tuple[str, ...], example: str) -> dict[str, Any]:
    """Read an argument with a value for each optimizer, without NumPy."""
    unknown = [given]
    if isinstance(given, Mapping):
        unknown = [key for key in given if key not in known]
    if unknown:
        raise SpaceError(
            f"`{name}` must be a mapping whose keys are among {', '.join(known)}",
            given,
            f"Pass {example}",
        )
    return {key: plain(value) for key, value in given.items()}


def count(searched: Sequence[tuple[Axis, tuple[Any, ...] | Range]]) -> int | None:
    """Count the combinations of the values of axes; `None` if one is drawn from a range."""
    below: dict[tuple[str, Any], int] = {}
    total = 1
    for axis, values in searched:
        if isinstance(values, Range):
            return None
        if axis.only_if is not None:
            name, others = axis.only_if
            below |= {(name, each): below.get((name, each), 1) * len(values) for each in others}
    for axis, values in searched:
        if axis.only_if is None and not isinstance(values, Range):
            total *= sum(below.get((axis.name, value), 1) for value in values)
    return total
