"""Space: which recipes a search may draw, declared as KerasTuner hyperparameters with readable names."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbatch.device import precision
from kbatch.errors import SpaceError
from kbatch.recipe import OPTIMIZERS, POLICIES, Recipe, whole_number
from kbatch.rules import learning_rate as rates
from kbatch.rules import warmup
from kbatch.strategy import WORDS, Strategy

BATCH_SIZES = (16, 32, 64, 128, 256, 512)
AXES = ("optimizer", "policy", "augmentation", "jit_compile", "recompute", "batch_size", "warmup_passes")
RATED = tuple(name for name in OPTIMIZERS if name != "compiled")
RESERVED = frozenset((*AXES, "micro_batch_size", "learning_rate", *(f"learning_rate_{name}" for name in RATED)))
MOST_PASSES = 2  # times the fewest that the limit allows, above which a batch size divides badly

RateAxis = float | tuple[float, float] | list[float]


def _default_rates() -> dict[str, RateAxis]:
    return {"sgd": (1e-3, 1e-1), "adam": (1e-5, 1e-2)}


class Combination(NamedTuple):
    """The parts of a recipe that decide, beside the batch size, how much memory a step needs."""

    policy: str
    optimizer: str
    jit_compile: bool
    recompute: str = "none"

    @classmethod
    def of(cls, recipe: Recipe) -> Combination:
        """That of a recipe."""
        return cls(recipe.policy, recipe.optimizer, recipe.jit_compile, recipe.recompute)

    def __str__(self) -> str:
        words = [self.optimizer, self.policy, *(["jit"] if self.jit_compile else [])]
        return ", ".join(words if self.recompute == "none" else [*words, f"recompute {self.recompute}"])


@dataclass(frozen=True)
class Space:
    """The recipes that a search may draw.

    Use it to fix, narrow or extend any axis: pass one value to fix it, or several to search over them. Where a value
    is drawn, KerasTuner shows it under the name of the argument (`learning_rate_sgd` and `learning_rate_adam` for the
    learning rates); these names are reserved, the `hp` calls in `build(hp)` may use any other.

    Args:
        optimizer: Names out of `"sgd"`, `"adam"`, `"compiled"`. Defaults to `("sgd", "adam")`.
        learning_rate: Mapping from optimizer to its learning rates *at batch 32*: a tuple `(lowest, highest)` is a
            range drawn on a log scale, a list is a choice, a float is fixed. Defaults to `(1e-3, 1e-1)` for SGD and
            `(1e-5, 1e-2)` for Adam.
        policy: Keras dtype policies. `None` (the default) leaves it to the machine: float32, and mixed_float16 on a
            GPU with tensor cores (compute capability 7.0), where it is faster. See `policies`.
        augmentation: Names of augmentation pipelines. Defaults to `("none",)`.
        jit_compile: Booleans. Defaults to `(False,)`.
        recompute: What the backward pass makes again, such as `("none", "minimal", "budget:0.5")`; see `Recipe`.
            Defaults to `("none",)`.
        micro_batch_size: Integer, the most examples per forward and backward pass; larger batches accumulate over
            equal passes of at most that many, and must divide so that not many more are needed than that allows.
            `None` (the default) sets no limit.
        batch_size: Examples per weight update. Declared last, so that a grid varies it first. Defaults to
            `(16, 32, 64, 128, 256, 512)`, of which a search leaves out those above its number of examples.
        baseline: `Recipe` that the user has today, trained once beside the search. Defaults to `Recipe()`. Of a model
            that `build` compiles, optimizer and learning rate are the baseline's; unless it names another policy than
            float32, it is trained under the global dtype policy.
        learning_rate_rule: Mapping from optimizer to the rule that carries a rate from batch 32 to another:
            `"linear"`, `"sqrt"` or `"constant"`. Defaults to linear for SGD and the square root for Adam.
        warmup_passes: Passes over the data that warm-up takes for large batches: `warmup_passes * (1 - 32 / batch_size)`,
            nothing up to batch 32, and at most a tenth of the horizon. Defaults to `(1.0,)`.

    Raises:
        SpaceError: If an axis cannot be searched.

    Example:
    >>> space = Space(optimizer="sgd", batch_size=(32, 128), policy="float32")
    >>> space.optimizer, space.batch_size
    (('sgd',), (32, 128))
    """

    optimizer: Any = ("sgd", "adam")
    learning_rate: Mapping[str, RateAxis] = field(default_factory=_default_rates)
    policy: Any = None
    augmentation: Any = ("none",)
    jit_compile: Any = (False,)
    recompute: Any = ("none",)
    micro_batch_size: int | None = None
    batch_size: Any = None
    baseline: Recipe = field(default_factory=Recipe)
    learning_rate_rule: Mapping[str, str] = field(default_factory=lambda: dict(rates.DEFAULT_RULES))
    warmup_passes: Any = (1.0,)
    default_sizes: bool = field(init=False, repr=False, compare=False, default=False)  # whether the batch sizes are the default ones

    def __post_init__(self) -> None:
        object.__setattr__(self, "default_sizes", self.batch_size is None)
        if self.batch_size is None:
            object.__setattr__(self, "batch_size", BATCH_SIZES)
        for name in AXES:
            if name != "policy" or self.policy is not None:
                self._normalize(name)
        self._among("optimizer", OPTIMIZERS)
        if self.policy is not None:
            self._among("policy", POLICIES)
        self._among("jit_compile", (False, True))
        for text in self.recompute:
            if Strategy.parse(text) is None:
                raise SpaceError(f"`recompute` must be among {WORDS}", text, "Pass these values only")
        object.__setattr__(self, "batch_size", tuple(map(_size, self.batch_size)))
        if self.micro_batch_size is not None:
            object.__setattr__(self, "micro_batch_size", _size(self.micro_batch_size))
            self._check_passes(self.micro_batch_size)
        for passes in self.warmup_passes:
            if not _is_number(passes) or not 0 <= passes < math.inf:
                raise SpaceError("`warmup_passes` must be numbers of at least 0", passes, "Pass 0 for no warm-up, 1.0 for one pass")
        object.__setattr__(self, "warmup_passes", tuple(map(float, self.warmup_passes)))
        self._by_optimizer("learning_rate", '{"sgd": (1e-3, 1e-1), "adam": 1e-3}')
        self._by_optimizer("learning_rate_rule", '{"sgd": "linear", "adam": "sqrt"}')
        for name in self._rated():
            _check_rates(name, self.learning_rate.get(name))
            rates.factor(rates.REFERENCE_BATCH_SIZE, self._rule(name))
        if not isinstance(self.baseline, Recipe):
            raise SpaceError("`baseline` must be a Recipe", self.baseline, "Pass kbatch.Recipe(…)")

    def _normalize(self, name: str) -> None:
        value = _plain(getattr(self, name))
        values = tuple(value) if isinstance(value, (tuple, list, range)) else (value,)
        try:
            different = len(set(values)) == len(values)
        except TypeError:
            different = False
        if not values or not different:
            raise SpaceError(f"`{name}` must hold at least one value, each once", value, "Pass one value, or a tuple of different ones")
        object.__setattr__(self, name, values)

    def _by_optimizer(self, name: str, example: str) -> None:
        """Refuse what is no mapping from optimizer, and keep plain values of it."""
        value = getattr(self, name)
        unknown = [key for key in value if key not in RATED] if isinstance(value, Mapping) else [value]
        if unknown:
            raise SpaceError(f"`{name}` must be a mapping whose keys are among {', '.join(RATED)}", value, f"Pass {example}")
        object.__setattr__(self, name, {key: _plain(axis) for key, axis in value.items()})

    def _check_passes(self, limit: int) -> None:
        for size in self.batch_size:
            passes, fewest = size // (self._micro_batch_size(size) or size), math.ceil(size / limit)
            if passes > MOST_PASSES * fewest:
                raise SpaceError(
                    f"A batch above `micro_batch_size`, {limit}, must have a divisor near it",
                    f"{size}, which takes {passes} passes of {size // passes} where {fewest} would do",
                    f"Pass multiples of {limit}, such as {fewest * limit}, as `batch_size`",
                )

    def _among(self, name: str, allowed: tuple[Any, ...]) -> None:
        for value in getattr(self, name):
            if value not in allowed:
                raise SpaceError(f"`{name}` must be among {', '.join(map(str, allowed))}", value, "Pass these values only")

    def _rated(self) -> tuple[str, ...]:
        return tuple(name for name in self.optimizer if name != "compiled")

    def _rule(self, optimizer: str) -> str:
        return self.learning_rate_rule.get(optimizer, rates.DEFAULT_RULES[optimizer])

    @property
    def policies(self) -> tuple[str, ...]:
        """The dtype policies that are searched: those of `policy`, or those that are fast on this machine.

        Asks TensorFlow for the GPU, and so imports it, only if `policy` is `None`.
        """
        return precision.fast_policies() if self.policy is None else self.policy

    @property
    def reserved(self) -> frozenset[str]:
        """Names that the user's own hyperparameters must not have."""
        return RESERVED

    def declare(self, hp: Any) -> None:
        """Declare every axis, batch size last.

        Args:
            hp: `keras_tuner.HyperParameters` to declare them in.
        """
        _choice(hp, "optimizer", self.optimizer)
        for name in self._rated():
            with hp.conditional_scope("optimizer", [name]):
                _rate(hp, f"learning_rate_{name}", self.learning_rate[name])
        _choice(hp, "warmup_passes", self.warmup_passes)
        _choice(hp, "policy", self.policies)
        _choice(hp, "augmentation", self.augmentation)
        _choice(hp, "jit_compile", self.jit_compile)
        _choice(hp, "recompute", self.recompute)
        _choice(hp, "batch_size", self.batch_size, default=32)

    def recipe(self, hp: Any, examples: int | None = None, horizon_examples: float | None = None) -> Recipe:
        """The recipe that the hyperparameters' values say.

        Args:
            hp: `keras_tuner.HyperParameters` in which `declare` was called.
            examples: Integer, number of training examples, which warm-up is counted from. Without it there is no
                warm-up: the recipe of a model that is built but not trained.
            horizon_examples: Float, examples that the baseline sees within the horizon; warm-up takes at most a tenth
                of the updates that these are. `None` sets no limit.
        """
        batch_size, optimizer = int(hp.get("batch_size")), hp.get("optimizer")
        rated = optimizer != "compiled"
        warm = rated and examples is not None
        return Recipe(
            batch_size=batch_size,
            optimizer=optimizer,
            learning_rate=self.rate_at(float(hp.get(f"learning_rate_{optimizer}")), optimizer, batch_size) if rated else None,
            warmup_updates=warmup.updates(batch_size, examples or 0, float(hp.get("warmup_passes")), horizon_examples) if warm else 0,
            policy=hp.get("policy"),
            augmentation=hp.get("augmentation"),
            micro_batch_size=self._micro_batch_size(batch_size),
            jit_compile=bool(hp.get("jit_compile")),
            recompute=hp.get("recompute"),
        )

    def combinations(self) -> list[Combination]:
        """What decides, beside the batch size, how much memory a step needs: each once."""
        return [Combination(*each) for each in itertools.product(self.policies, self.optimizer, self.jit_compile, self.recompute)]

    def rate_at(self, rate_at_32: float, optimizer: str, batch_size: int) -> float:
        """The learning rate at `batch_size` that the optimizer's rule makes of one at batch 32."""
        return rate_at_32 * rates.factor(batch_size, self._rule(optimizer))

    def rate_at_32(self, recipe: Recipe) -> float | None:
        """The learning rate of a recipe carried back to batch 32; `None` if its optimizer keeps its own."""
        if recipe.learning_rate is None:
            return None
        return recipe.learning_rate / rates.factor(recipe.batch_size, self._rule(recipe.optimizer))

    def _micro_batch_size(self, batch_size: int) -> int | None:
        limit = self.micro_batch_size
        if limit is None or batch_size <= limit:
            return None
        return max(size for size in range(1, limit + 1) if batch_size % size == 0)

    def to_dict(self) -> dict[str, Any]:
        """All axes in JSON's own types, to tell one space from another; `policy` as it is on this machine."""
        axes = {**dataclasses.asdict(self), "policy": self.policies}
        del axes["default_sizes"]
        return axes


def _size(value: Any) -> int:
    number = whole_number(value)
    if number is None:
        raise SpaceError("Batch sizes must be whole numbers of at least 1", value, "Pass sizes such as (32, 64, 128)")
    return number


def _choice(hp: Any, name: str, values: tuple[Any, ...], default: Any = None) -> None:
    if len(values) == 1:
        hp.Fixed(name, values[0])
    elif isinstance(values[0], bool):
        hp.Boolean(name, default=values[0])
    else:
        hp.Choice(name, list(values), default=default if default in values else values[0])


def _rate(hp: Any, name: str, axis: RateAxis) -> None:
    if isinstance(axis, tuple):
        hp.Float(name, axis[0], axis[1], sampling="log", default=(axis[0] * axis[1]) ** 0.5)
    else:
        _choice(hp, name, tuple(map(float, axis)) if isinstance(axis, list) else (float(axis),))


def _plain(value: Any) -> Any:
    """A value without NumPy: its arrays and scalars as lists and numbers of Python's, also inside a tuple or list."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return type(value)(map(_plain, value)) if type(value) in (tuple, list) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_rates(name: str, axis: Any) -> None:
    values = list(axis) if isinstance(axis, (tuple, list)) else [axis]
    numbers = values and all(_is_number(value) and 0 < value < math.inf for value in values)
    is_range = isinstance(axis, tuple)
    if not numbers or (is_range and (len(values) != 2 or values[0] >= values[1])):
        raise SpaceError(
            f'`learning_rate["{name}"]` must be a range (lowest, highest), a list of rates, or one rate, all above 0',
            axis,
            f'Pass {{"{name}": (1e-4, 1e-1)}}, [0.001, 0.01] or 0.01',
        )
