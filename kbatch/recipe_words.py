"""Recipe words: the values that the fields of a recipe may have, and how they are read."""

from __future__ import annotations

import math
import numbers
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kbatch import plain_text
from kbatch.errors import KbatchError, RecipeError
from kbatch.plain_text import number, shortest

FLOAT16, FLOAT8 = "float16", "float8"
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16", FLOAT16, FLOAT8)
# What the layers that have no float8 matrix multiplication compute in. Its range is that of
# float32, so the loss needs no scaling.
FLOAT8_BASE = "mixed_bfloat16"
# Optimizers that divide by the root of squared gradients, which are 0 in float16 below 2.4e-4.
ADAPTIVE = ("adam", "adamw", "lamb")


def policy_of_keras(policy: str) -> str:
    """Return the global dtype policy of Keras under which a model is built for a policy.

    Example:
    >>> policy_of_keras("float8"), policy_of_keras("float16")
    ('mixed_bfloat16', 'float16')
    """
    return FLOAT8_BASE if policy == FLOAT8 else policy


def check_policies(
    error: type[KbatchError],
    policies: Iterable[str],
    optimizers: Iterable[str],
    methods: Iterable[str],
) -> None:
    """Refuse policies that do not go with an optimizer or a training method beside them."""
    policies = tuple(policies)
    adaptive = [name for name in optimizers if name in ADAPTIVE]
    if FLOAT16 in policies and adaptive:
        raise error(
            'policy="float16" must go without the Adam family: squared gradients, by whose root '
            "it divides, are 0 in float16 below 2.4e-4",
            f"optimizer {', '.join(adaptive)}",
            'Take sgd or lars, or policy="mixed_float16"; a search over both needs two spaces',
        )
    several = [method for method in methods if method != "plain"]
    if FLOAT8 in policies and several:
        raise error(
            'policy="float8" must go with plain training: Keras hands the scales of float8 over '
            "as gradients, once per update",
            f"training {', '.join(several)}",
            f'Take training="plain", or policy={FLOAT8_BASE!r}',
        )


PLAIN, SAM, PROXIMAL = "plain", "sam", "proximal"
INNER_STEPS = 3  # of the proximal method, if none are named; chosen by hand, not tuned
MOST_INNER_STEPS = 100
METHOD_WORDS = (
    f"{PLAIN}, {SAM}:0.05 (radius) or {PROXIMAL}:0.1 (penalty; {PROXIMAL}:0.1:5 for 5 steps)"
)


@dataclass(frozen=True)
class TrainingMethod:
    """One value of the axis `training`."""

    # `"plain"`; `"sam"`, sharpness-aware minimisation (Foret et al. 2021); or `"proximal"`, the
    # proximal mini-batch method (Li et al., KDD 2014).
    name: str = PLAIN
    # above 0: the radius of SAM, or the penalty of the proximal method on the squared
    # distance from where a batch began. 0 for plain training.
    amount: float = 0.0
    inner_steps: int = 1  # optimizer steps on each batch; above 1 for the proximal method only

    def __str__(self) -> str:
        """Return the text that `parse` reads, one for all spellings of a method."""
        words = [self.name]
        if self.name != PLAIN:
            words.append(shortest(self.amount))
        if self.inner_steps != _default_steps(self.name):
            words.append(str(self.inner_steps))
        return ":".join(words)

    @classmethod
    def parse(cls, text: object) -> TrainingMethod | None:
        """Read a method from a text such as `"sam:0.05"`; `None` for any other text.

        Example:
        >>> TrainingMethod.parse("sam:0.05")
        TrainingMethod(name='sam', amount=0.05, inner_steps=1)
        >>> TrainingMethod.parse("proximal:0.1").inner_steps
        3
        >>> TrainingMethod.parse("sam") is None
        True
        """
        if not isinstance(text, str):
            return None
        name, *numbers = text.split(":")
        if name == PLAIN:
            return None if numbers else cls()
        most_numbers = {SAM: 1, PROXIMAL: 2}.get(name, 0)
        if not 1 <= len(numbers) <= most_numbers:
            return None
        amount = _above_0(numbers[0])
        steps = _steps(numbers[1]) if len(numbers) > 1 else _default_steps(name)
        return None if amount is None or steps is None else cls(name, amount, steps)


def _default_steps(name: str) -> int:
    return INNER_STEPS if name == PROXIMAL else 1


def _above_0(text: str) -> float | None:
    amount = number(text)
    return amount if amount is not None and amount > 0 else None


def _steps(text: str) -> int | None:
    plain_digits = text.isascii() and text.isdecimal()
    return int(text) if plain_digits and 2 <= int(text[:9]) <= MOST_INNER_STEPS else None


CONSTANT = "constant"
BY_PROGRESS = ("linear", "exponential", "steps")  # their sizes are known beforehand
KINDS = (*BY_PROGRESS, "plateau", "noise")
GROWTH_WORDS = f"{CONSTANT}, or one of {', '.join(KINDS)} with a factor, such as exponential:8"


@dataclass(frozen=True)
class BatchGrowth:
    """One value of the axis `batch_schedule`.

    A training begins with the batch size of the recipe divided by `factor`, but at least one
    example per pass, and grows to it.
    """

    # `"constant"`; `"linear"`, `"exponential"` or `"steps"` over the horizon; `"plateau"`, when the
    # metric stops improving; or `"noise"`, by the measured gradient noise scale
    kind: str = CONSTANT
    factor: float = 1.0  # above 1, the last batch size over the first; 1 for a constant one

    def __str__(self) -> str:
        """Return the text that `parse` reads, one for all spellings of a growth."""
        return self.kind if self.kind == CONSTANT else f"{self.kind}:{shortest(self.factor)}"

    @classmethod
    def parse(cls, text: object) -> BatchGrowth | None:
        """Read the growth from a text such as `"linear:8"`; `None` for any other text.

        Example:
        >>> BatchGrowth.parse("linear:8")
        BatchGrowth(kind='linear', factor=8.0)
        >>> BatchGrowth.parse("linear") is None
        True
        """
        if not isinstance(text, str):
            return None
        kind, colon, rest = text.partition(":")
        if kind == CONSTANT:
            return None if colon else cls()
        factor = number(rest)
        return None if kind not in KINDS or factor is None or factor <= 1 else cls(kind, factor)


def measures_noise(schedule: str) -> bool:
    """Tell whether a batch grows by the gradient noise scale, which is measured in passes.

    Example:
    >>> measures_noise("noise:8"), measures_noise("linear:8")
    (True, False)
    """
    return schedule.startswith("noise")


def check_companions(
    error: type[KbatchError],
    schedules: Sequence[str],
    compilations: Sequence[bool],
    methods: Sequence[str],
) -> None:
    """Refuse a growing batch together with what it cannot be trained with."""
    growing = [schedule for schedule in schedules if schedule != CONSTANT]
    if growing and True in compilations:
        raise error(
            "Batch schedules must do without XLA, which compiles every batch size anew",
            f"batch_schedule={', '.join(growing)} and jit_compile=True",
            "Pass jit_compile=False, or constant batches",
        )
    by_noise = [schedule for schedule in growing if measures_noise(schedule)]
    other = [method for method in methods if method != "plain"]
    if by_noise and other:
        raise error(
            "A batch that grows by the noise scale must train plainly, where it is measured",
            f"batch_schedule={', '.join(by_noise)} and training={', '.join(other)}",
            'Pass training="plain", or another schedule',
        )


SEARCHED = ("none", "minimal", "sqrt", "stages", "blocks")
BUDGET, SEGMENTS = "budget", "segments"
STRATEGY_WORDS = (
    f"{', '.join(SEARCHED)}, {SEGMENTS}:4 (so many equal ones) or {BUDGET}:0.5 (at most that share "
    "of the kept bytes)"
)


@dataclass(frozen=True)
class Strategy:
    """One value of the axis `recompute`."""

    name: str  # one of `SEARCHED`, `"segments"` or `"budget"`
    # between 0 and 1, share of the plain model's kept bytes that may be kept. `None` for all
    # strategies but `"budget"`.
    kept_share: float | None = None
    # from 2, the number of equal segments. `None` for all strategies but `"segments"`.
    count: int | None = None

    def __str__(self) -> str:
        """Return the text that `parse` reads, one for all spellings of a strategy."""
        if self.kept_share is not None:
            return f"{self.name}:{shortest(self.kept_share)}"
        return self.name if self.count is None else f"{self.name}:{self.count}"

    @classmethod
    def parse(cls, text: object) -> Strategy | None:
        """Read a strategy from a text such as `"budget:0.5"`; `None` for any other text.

        Example:
        >>> Strategy.parse("budget:0.5")
        Strategy(name='budget', kept_share=0.5, count=None)
        >>> Strategy.parse("budget") is None
        True
        """
        if not isinstance(text, str):
            return None
        name, _, share = text.partition(":")
        if name in SEARCHED:
            return None if share or text.endswith(":") else cls(name)
        if name == SEGMENTS:
            plain = re.fullmatch(r"[1-9][0-9]{0,3}", share)
            return cls(name, count=int(share)) if plain and int(share) > 1 else None
        kept = number(share)
        known = name == BUDGET and kept is not None and 0 < kept < 1
        return cls(name, kept) if known else None


COMPILED = "compiled"
TUNED_OPTIMIZERS = (COMPILED, "sgd", "adam")  # that a search of a user's own training tries
OPTIMIZERS = ("sgd", "adam", "adamw", "lars", "lamb", COMPILED)
ADAMS = ("adam", "adamw", "lamb")  # optimizers with a mean of squared gradients
# The built-in pipelines; each word of a name is a part of `kbatch.data.augmentation`.
AUGMENTATIONS = ("none", "flip", "flip_shift", "flip_shift_contrast", "mixup", "cutmix") + (
    "flip_shift_mixup",
    "flip_shift_cutmix",
)
SCHEDULES = ("constant", "cosine", "steps")
NORMALIZATIONS = ("batch", "group")
MEAN, EXACT = "mean", "exact"  # how the passes of a batch make one gradient
# Settings of an optimizer: with optimizer="compiled" they are the model's own.
OF_OPTIMIZER = ("warmup_updates", "weight_decay", "momentum", "beta_2", "clip_norm", "schedule")

Check = Callable[[Any], Any]


def whole_number(value: Any, least: int = 1) -> int | None:
    """Return a whole number of Python or NumPy as an `int`; `None` for any other value.

    Booleans, integers below `least` and integers of more than 64 bits are other values.
    """
    try:
        whole = operator.index(value)
    except TypeError:
        return None
    allowed = least <= whole <= plain_text.LARGEST
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
    "recompute": _in_words("recompute", Strategy.parse, STRATEGY_WORDS),
    "label_smoothing": _number(
        "label_smoothing", lambda share: 0 <= share < 1, "of at least 0 and below 1", "0.1"
    ),
    "weight_decay": _number("weight_decay", lambda decay: decay >= 0, "of at least 0", "0.01"),
    "momentum": _number("momentum", lambda m: 0 <= m < 1, "of at least 0 and below 1", "0.9"),
    "beta_2": _number("beta_2", lambda m: 0 <= m < 1, "of at least 0 and below 1", "0.99"),
    "dropout_scale": _number("dropout_scale", lambda scale: scale >= 0, "of at least 0", "1.0"),
    "schedule": _one_of("schedule", SCHEDULES),
    "training": _in_words("training", TrainingMethod.parse, METHOD_WORDS),
    "clip_norm": _or_none(_number("clip_norm", lambda norm: norm > 0, "above 0, or None", "1.0")),
    "ema": _or_none(_number("ema", lambda m: 0 < m < 1, "between 0 and 1, or None", "0.99")),
    "batch_schedule": _in_words("batch_schedule", BatchGrowth.parse, GROWTH_WORDS),
    "normalization": _one_of("normalization", NORMALIZATIONS),
    "accumulation": _one_of("accumulation", (MEAN, EXACT)),
}
