"""One axis of a search: a setting of the training that varies from trial to trial."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbatch.errors import SpaceError
from kbatch.option import Option, Range
from kbatch.recipe import whole_number
from kbatch.recompute_strategy import WORDS, Strategy

RateAxis = float | tuple[float, float] | list[float]


@dataclass(frozen=True)
class Axis:
    """A setting that a search varies: an argument of `Space` and a hyperparameter of KerasTuner.

    Attributes:
        name: String, name of the hyperparameter.
        check: Function that returns a value as a recipe holds it, and raises `SpaceError` for a
            value that is not allowed.
        default: Tuple of the default values; `None` if the machine or the data decide.
        option: `Option` of `kbatch cats-vs-dogs`, or `None`.
        in_recipe: Boolean, whether a recipe has a field, and results a column, of this name.
        decides_memory: Boolean, whether the setting changes the memory of a step of a given batch
            size.
        only_if: Tuple of another axis' name and the value that it must have; `None` if the axis is
            always drawn.
        preferred: The value that a tuner starts with, if it is in the search.
        of: String, name of the argument of `Space` that holds the values, by the value of the other
            axis; empty if the argument has the name of the axis.
        of_machine: String, name of the property of `Space` that tells the values where this machine
            decides them; empty if it never does.
    """

    name: str
    check: Callable[[Any], Any]
    default: tuple[Any, ...] | None = None
    option: Option | None = None
    in_recipe: bool = True
    decides_memory: bool = False
    only_if: tuple[str, Any] | None = None
    preferred: Any = None
    of: str = ""
    of_machine: str = ""

    def values(self, given: Any) -> tuple[Any, ...]:
        """Check the user's argument, one value or several, and return a tuple of values.

        Raises:
            SpaceError: If there is no value, a value stands twice, or a value is not allowed.
        """
        several = tuple(given) if isinstance(given, (tuple, list, range)) else (given,)
        try:
            different = len(set(several)) == len(several)
        except TypeError:
            different = False
        if not several or not different:
            must, do = (
                f"`{self.name}` must hold at least one value, each once",
                "Pass one value, or a tuple of different ones",
            )
            raise SpaceError(must, given, do)
        return tuple(self.check(value) for value in several)

    def declare(self, hp: Any, values: tuple[Any, ...] | Range) -> None:
        """Declare the axis as a hyperparameter.

        Args:
            hp: `keras_tuner.HyperParameters`.
            values: Tuple of several values, or a `Range`.
        """
        if isinstance(values, Range):
            middle = (values.lowest * values.highest) ** 0.5
            hp.Float(self.name, values.lowest, values.highest, sampling="log", default=middle)
        elif isinstance(values[0], bool):
            hp.Boolean(self.name, default=values[0])
        else:
            first = self.preferred if self.preferred in values else values[0]
            hp.Choice(self.name, list(values), default=first)


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


def is_fixed(values: tuple[Any, ...] | Range) -> bool:
    """Tell whether an axis has one value only, so that nothing is drawn."""
    return not isinstance(values, Range) and len(values) == 1


def is_number(value: Any) -> bool:
    """Tell whether a value is a number; a boolean is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """Convert NumPy's arrays and scalars to lists and numbers, also inside tuples and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return type(value)(map(plain, value)) if type(value) in (tuple, list) else value


def rates_of(optimizer: str, given: Any) -> tuple[float, ...] | Range:
    """Read the learning rates of an optimizer: a range (tuple), a choice (list) or one number.

    Raises:
        SpaceError: If the argument is another.

    Example:
    >>> rates_of("sgd", (0.01, 0.1))
    Range(lowest=0.01, highest=0.1)
    """
    several = list(given) if isinstance(given, (tuple, list)) else [given]
    numbers = bool(several) and all(is_number(rate) and 0 < rate < math.inf for rate in several)
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
    if not is_number(value) or not 0 <= value < math.inf:
        raise SpaceError(
            "`warmup_passes` must be numbers of at least 0",
            value,
            "Pass 0 for no warm-up, 1.0 for one pass",
        )
    return float(value)


def strategy_of(value: Any) -> Any:
    """Check a strategy of recompute, given in words."""
    if Strategy.parse(value) is None:
        raise SpaceError(f"`recompute` must be among {WORDS}", value, "Pass these values only")
    return value


def rate_of(value: Any) -> float:
    """Check a learning rate at batch 32."""
    if not is_number(value) or not 0 < value < math.inf:
        raise SpaceError(
            "`learning_rate` must hold finite numbers above 0", value, "Pass 0.01, say"
        )
    return float(value)


def smoothing_of(value: Any) -> float:
    """Check an amount of label smoothing."""
    if not is_number(value) or not 0 <= value < 1:
        raise SpaceError(
            "`label_smoothing` must hold numbers of at least 0 and below 1",
            value,
            "Pass (0, 0.1), say",
        )
    return float(value)


def name_of(value: Any) -> Any:
    """Return the name of an augmentation, which `kbatch.HyperModel` checks later.

    The registered pipelines are in a module that imports TensorFlow.
    """
    return value
