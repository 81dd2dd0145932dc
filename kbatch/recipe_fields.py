"""The fields of a recipe, each with the check that returns its value as a recipe holds it."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable
from typing import Any

from kbatch import json_form, recompute_strategy, training_method
from kbatch.batch_growth import WORDS as GROWTH_WORDS
from kbatch.batch_growth import BatchGrowth
from kbatch.dtype_policy import POLICIES
from kbatch.errors import RecipeError
from kbatch.training_method import TrainingMethod

COMPILED = "compiled"
OPTIMIZERS = ("sgd", "adam", "adamw", "lars", "lamb", COMPILED)
# The built-in pipelines; each word of a name is a part of `kbatch.data.augmentation`.
AUGMENTATIONS = ("none", "flip", "flip_shift", "flip_shift_contrast", "mixup", "cutmix") + (
    "flip_shift_mixup",
    "flip_shift_cutmix",
)
SCHEDULES = ("constant", "cosine", "steps")
NORMALIZATIONS = ("batch", "group")
MEAN, EXACT = "mean", "exact"  # how the passes of a batch make one gradient
# Settings of an optimizer: with optimizer="compiled" they are the model's own.
OF_OPTIMIZER = ("warmup_updates", "weight_decay", "momentum", "clip_norm", "schedule")

Check = Callable[[Any], Any]


def whole_number(value: Any, least: int = 1) -> int | None:
    """Return a whole number of Python or NumPy as an `int`; `None` for any other value.

    Booleans, integers below `least` and integers of more than 64 bits are other values.
    """
    try:
        whole = operator.index(value)
    except TypeError:
        return None
    allowed = least <= whole <= json_form.LARGEST
    return None if isinstance(value, bool) or not allowed else whole


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number of Python or NumPy; a boolean is not."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # a whole number that no float holds
        return False


def _whole(name: str, least: int) -> Check:
    def check(value: Any) -> int:
        whole = whole_number(value, least)
        if whole is None:
            raise RecipeError(
                f"`{name}` must be a whole number of at least {least}",
                repr(value),
                f"Pass an int such as {max(least, 32)}",
            )
        return whole

    return check


def _one_of(name: str, allowed: tuple[str, ...]) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise RecipeError(
                f"`{name}` must be one of {', '.join(allowed)}", value, "Pass one of these names"
            )
        return str(value)

    return check


def _in_words(name: str, parse: Callable[[object], Any], known: str) -> Check:
    def check(value: Any) -> str:
        parsed = parse(value)
        if parsed is None:
            raise RecipeError(f"`{name}` must be {known}", repr(value), "Pass one of these")
        return str(parsed)  # in one spelling

    return check


def _number(name: str, fits: Callable[[float], bool], words: str, such_as: str) -> Check:
    def check(value: Any) -> float:
        if not is_number(value) or not fits(float(value)):
            must, do = f"`{name}` must be a number {words}", f"Pass {such_as}, say"
            raise RecipeError(must, repr(value), do)
        return float(value)

    return check


def _or_none(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _augmentation(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise RecipeError(
            "`augmentation` must be the name of a pipeline", value, 'Pass "none" or another name'
        )
    return value


def _jit_compile(value: Any) -> bool:
    if not isinstance(value, bool):
        raise RecipeError(
            "`jit_compile` must be True or False", value, "Say which: a recipe never means 'auto'"
        )
    return value


CHECKS: dict[str, Check] = {
    "batch_size": _whole("batch_size", 1),
    "warmup_updates": _whole("warmup_updates", 0),
    "optimizer": _one_of("optimizer", OPTIMIZERS),
    "policy": _one_of("policy", POLICIES),
    "augmentation": _augmentation,
    "jit_compile": _jit_compile,
    "recompute": _in_words(
        "recompute", recompute_strategy.Strategy.parse, recompute_strategy.WORDS
    ),
    "label_smoothing": _number(
        "label_smoothing", lambda share: 0 <= share < 1, "of at least 0 and below 1", "0.1"
    ),
    "weight_decay": _number("weight_decay", lambda decay: decay >= 0, "of at least 0", "0.01"),
    "momentum": _number("momentum", lambda m: 0 <= m < 1, "of at least 0 and below 1", "0.9"),
    "dropout_scale": _number("dropout_scale", lambda scale: scale >= 0, "of at least 0", "1.0"),
    "schedule": _one_of("schedule", SCHEDULES),
    "training": _in_words("training", TrainingMethod.parse, training_method.WORDS),
    "clip_norm": _or_none(_number("clip_norm", lambda norm: norm > 0, "above 0, or None", "1.0")),
    "ema": _or_none(_number("ema", lambda m: 0 < m < 1, "between 0 and 1, or None", "0.99")),
    "batch_schedule": _in_words("batch_schedule", BatchGrowth.parse, GROWTH_WORDS),
    "normalization": _one_of("normalization", NORMALIZATIONS),
    "accumulation": _one_of("accumulation", (MEAN, EXACT)),
}
