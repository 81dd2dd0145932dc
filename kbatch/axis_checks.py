"""Checks of the values of axes, which return a value as a recipe holds it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kbatch.errors import RecipeError, SpaceError
from kbatch.recipe_fields import CHECKS, is_number, whole_number
from kbatch.recompute_strategy import WORDS, Strategy
from kbatch.training_method import PLAIN, TrainingMethod


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
        raise SpaceError(f"`recompute` must be among {WORDS}", value, "Pass these values only")
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
