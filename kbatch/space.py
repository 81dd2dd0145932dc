"""Space: which recipes a search may draw. The table of its axes stands here."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbatch.axis import (
    Axis,
    RateAxis,
    among,
    batch_size_of,
    is_fixed,
    name_of,
    passes_of,
    plain,
    rate_of,
    rates_of,
    smoothing_of,
    strategy_of,
)
from kbatch.device import precision
from kbatch.errors import SpaceError
from kbatch.option import Option, Range, between, names, numbers, one_of, whole_numbers, words
from kbatch.recipe import OPTIMIZERS, POLICIES, Recipe
from kbatch.rules import learning_rate as rates
from kbatch.rules import micro_batch, warmup

RATED = tuple(name for name in OPTIMIZERS if name != "compiled")
# Arguments of the spaces that the first projects were begun with: a later axis is a fact of a
# project only where it is searched.
FIRST_ARGUMENTS = frozenset(
    ("optimizer", "learning_rate", "policy", "augmentation", "jit_compile", "recompute")
    + ("micro_batch_size", "batch_size", "baseline", "learning_rate_rule", "warmup_passes")
)


def _rates(optimizer: str, title: str, searched: str) -> Axis:
    """The axis of the learning rate of one optimizer."""
    option = Option(
        f"{optimizer}-rates",
        f"{title}'s learning rates at batch 32, lowest:highest.",
        between(1e-9, 100.0),
        searched,
    )
    return Axis(
        f"learning_rate_{optimizer}",
        rate_of,
        None,
        option,
        in_recipe=False,
        only_if=("optimizer", optimizer),
        of="learning_rate",
    )


AXES = (
    Axis(
        "policy",
        among("policy", POLICIES),
        option=Option(
            "policies",
            "float32, mixed_float16, mixed_bfloat16.",
            names(POLICIES),
            default_words="float32, with a GPU mixed_float16 too",
        ),
        decides_memory=True,
    ),
    Axis(
        "optimizer",
        among("optimizer", OPTIMIZERS),
        ("sgd", "adam"),
        Option("optimizers", "sgd, adam.", names(RATED), "sgd,adam"),
        decides_memory=True,
    ),
    _rates("sgd", "SGD", "0.002:0.02"),
    _rates("adam", "Adam", "0.0001:0.001"),
    Axis(
        "jit_compile",
        among("jit_compile", (False, True)),
        (False,),
        Option(
            "jit",
            "XLA: off, on or both.",
            one_of({"off": (False,), "on": (True,), "both": (False, True)}),
            "off",
        ),
        decides_memory=True,
    ),
    Axis(
        "recompute",
        strategy_of,
        ("none",),
        Option(
            "recompute",
            "What the backward pass makes again: none, minimal, sqrt, stages, budget:0.5.",
            words,
            "none",
        ),
        decides_memory=True,
    ),
    Axis("warmup_passes", passes_of, (1.0,), in_recipe=False),
    Axis(
        "augmentation",
        name_of,
        ("none",),
        Option(
            "augmentations",
            "none, flip, flip_shift, flip_shift_contrast.",
            names(("none", "flip", "flip_shift", "flip_shift_contrast")),
            "none,flip,flip_shift",
        ),
    ),
    Axis(
        "label_smoothing",
        smoothing_of,
        (0.0,),
        Option(
            "label-smoothing",
            "Share of each label spread over all classes, such as 0,0.1.",
            numbers,
            "0",
        ),
        decides_memory=True,
    ),
    Axis(  # the last, so that a grid varies it first
        "batch_size",
        batch_size_of,
        (16, 32, 64, 128, 256, 512),
        Option(
            "batch-sizes",
            "Examples per update.",
            whole_numbers,
            default_words="those of 16,32,64,128,256 that the data hold",
        ),
        preferred=32,
    ),
)
AXIS = {axis.name: axis for axis in AXES}
RESERVED = frozenset((*AXIS, "micro_batch_size", "learning_rate"))


def _default_rates() -> dict[str, RateAxis]:
    return {"sgd": (1e-3, 1e-1), "adam": (1e-5, 1e-2)}


@dataclass(frozen=True)
class Space:
    """The recipes that a search may draw.

    Use it to fix, narrow or extend any axis: pass one value to fix it, or several to search over
    them. Where a value may vary, KerasTuner shows it under the name of the argument
    (`learning_rate_sgd` and `learning_rate_adam` for the learning rates); these names are reserved,
    the `hp` calls in `build(hp)` may use any other.

    Args:
        optimizer: Names out of `"sgd"`, `"adam"`, `"compiled"`. Defaults to `("sgd", "adam")`.
        learning_rate: Mapping from optimizer to its learning rates *at batch 32*: a tuple
            `(lowest, highest)` is a range drawn on a log scale, a list is a choice, a float is
            fixed. Defaults to `(1e-3, 1e-1)` for SGD and
            `(1e-5, 1e-2)` for Adam.
        policy: Keras dtype policies. `None` (the default) leaves it to the machine: float32, and
            mixed_float16 on a GPU with tensor cores (compute capability 7.0), where it is faster.
            See `policies`.
        augmentation: Names of augmentation pipelines. Defaults to `("none",)`.
        jit_compile: Booleans. Defaults to `(False,)`.
        recompute: What the backward pass makes again, such as `("none", "minimal", "budget:0.5")`;
            see `Recipe`. Defaults to `("none",)`.
        micro_batch_size: Integer, the most examples per forward and backward pass; larger batches
            accumulate over equal passes of at most that many, and must divide so that not many more
            are needed than that allows.
            `None` (the default) sets no limit.
        batch_size: Examples per weight update. Declared last, so that a grid varies it first.
            Defaults to
            `(16, 32, 64, 128, 256, 512)`, of which a search leaves out those above its number of
            examples.
        baseline: `Recipe` that the user has today, trained once beside the search. Defaults to
            `Recipe()`. Of a model that `build` compiles, optimizer and learning rate are the
            baseline's; unless it names another policy than float32, it is trained under the global
            dtype policy.
        label_smoothing: Shares of each label that are spread over all classes, such as `(0, 0.1)`;
            needs a cross-entropy loss. Defaults to `(0.0,)`.
        learning_rate_rule: Mapping from optimizer to the rule that carries a rate from batch 32 to
            another:
            `"linear"`, `"sqrt"` or `"constant"`. Defaults to linear for SGD and the square root for
            Adam.
        warmup_passes: Passes over the data that warm-up takes for large batches:
            `warmup_passes * (1 - 32 / batch_size)`, nothing up to batch 32, and at most a tenth of
            the horizon. Defaults to `(1.0,)`.

    Raises:
        SpaceError: If an axis cannot be searched.

    Example:
    >>> space = Space(optimizer="sgd", batch_size=(32, 128), policy="float32")
    >>> space.optimizer, space.batch_size
    (('sgd',), (32, 128))
    """

    optimizer: Any = AXIS["optimizer"].default
    learning_rate: Mapping[str, RateAxis] = field(default_factory=_default_rates)
    policy: Any = None
    augmentation: Any = AXIS["augmentation"].default
    jit_compile: Any = AXIS["jit_compile"].default
    recompute: Any = AXIS["recompute"].default
    micro_batch_size: int | None = None
    batch_size: Any = None
    baseline: Recipe = field(default_factory=Recipe)
    learning_rate_rule: Mapping[str, str] = field(default_factory=lambda: dict(rates.DEFAULT_RULES))
    warmup_passes: Any = AXIS["warmup_passes"].default
    label_smoothing: Any = AXIS["label_smoothing"].default
    # whether the batch sizes are the default ones
    default_sizes: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "default_sizes", self.batch_size is None)
        if self.batch_size is None:
            object.__setattr__(self, "batch_size", AXIS["batch_size"].default)
        for axis in AXES:
            given = None if axis.of else getattr(self, axis.name)
            if given is not None or axis.default is not None:
                object.__setattr__(self, axis.name, axis.values(plain(given)))
        if self.micro_batch_size is not None:
            object.__setattr__(self, "micro_batch_size", batch_size_of(self.micro_batch_size))
            micro_batch.check(self.batch_size, self.micro_batch_size)
        self._by_optimizer("learning_rate", '{"sgd": (1e-3, 1e-1), "adam": 1e-3}')
        self._by_optimizer("learning_rate_rule", '{"sgd": "linear", "adam": "sqrt"}')
        for name in (each for each in self.optimizer if each in RATED):
            rates_of(name, self.learning_rate.get(name))
            rates.factor(rates.REFERENCE_BATCH_SIZE, self._rule(name))
        if not isinstance(self.baseline, Recipe):
            raise SpaceError("`baseline` must be a Recipe", self.baseline, "Pass kbatch.Recipe(…)")

    def _by_optimizer(self, name: str, example: str) -> None:
        """Refuse what is no mapping from optimizer, and keep plain values of it."""
        value = getattr(self, name)
        unknown = (
            [key for key in value if key not in RATED] if isinstance(value, Mapping) else [value]
        )
        if unknown:
            raise SpaceError(
                f"`{name}` must be a mapping whose keys are among {', '.join(RATED)}",
                value,
                f"Pass {example}",
            )
        object.__setattr__(self, name, {key: plain(axis) for key, axis in value.items()})

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
        """Declare the axes of more than one value, batch size last: a tuner sees only what it may vary.

        Args:
            hp: `keras_tuner.HyperParameters` to declare them in.
        """
        for axis, values in self.searched():
            if not is_fixed(values):
                with self._scope(hp, axis):
                    axis.declare(hp, values)

    def recipe(
        self, hp: Any, examples: int | None = None, horizon_examples: float | None = None
    ) -> Recipe:
        """The recipe that the hyperparameters' values say.

        Args:
            hp: `keras_tuner.HyperParameters` in which `declare` was called.
            examples: Integer, number of training examples, which warm-up is counted from. Without
                it there is no warm-up: the recipe of a model that is built but not trained.
            horizon_examples: Float, examples that the baseline sees within the horizon; warm-up
                takes at most a tenth of the updates that these are. `None` sets no limit.
        """
        drawn = self.drawn(hp)
        batch_size, optimizer = drawn["batch_size"], drawn["optimizer"]
        fields = {axis.name: drawn[axis.name] for axis in AXES if axis.in_recipe}
        fields["micro_batch_size"] = micro_batch.size_of(batch_size, self.micro_batch_size)
        if optimizer == "compiled":
            return Recipe(**fields, learning_rate=None)
        fields["learning_rate"] = self.rate_at(
            drawn[f"learning_rate_{optimizer}"], optimizer, batch_size
        )
        if examples is not None:
            fields["warmup_updates"] = warmup.updates(
                batch_size, examples, drawn["warmup_passes"], horizon_examples
            )
        return Recipe(**fields)

    def drawn(self, hp: Any) -> dict[str, Any]:
        """The value of every axis that the hyperparameters' values say, by name, the fixed ones among them.

        Args:
            hp: `keras_tuner.HyperParameters` in which `declare` was called.
        """
        found: dict[str, Any] = {}
        for axis, values in self.searched():
            if axis.only_if is None or found[axis.only_if[0]] == axis.only_if[1]:
                found[axis.name] = axis.check(values[0] if is_fixed(values) else hp.get(axis.name))
        return found

    def searched(self) -> Iterator[tuple[Axis, Any]]:
        """The axes that some recipe of the space draws, with their values or their `Range`."""
        for axis in AXES:
            if axis.only_if is None:
                yield axis, self.policies if axis.name == "policy" else getattr(self, axis.name)
            elif axis.only_if[1] in getattr(self, axis.only_if[0]):
                yield axis, rates_of(axis.only_if[1], getattr(self, axis.of)[axis.only_if[1]])

    def _scope(self, hp: Any, axis: Axis) -> Any:
        """Where an axis is declared: below the value that it depends on, if that may vary."""
        if axis.only_if is None or is_fixed(getattr(self, axis.only_if[0])):
            return contextlib.nullcontext()
        parent, value = axis.only_if
        return hp.conditional_scope(parent, [value])

    def size(self) -> int | None:
        """How many recipes the space holds, not counting what `build` varies; `None` if a learning rate is drawn from a range."""
        below: dict[tuple[str, Any], int] = {}
        total = 1
        for axis, values in self.searched():
            if isinstance(values, Range):
                return None
            if axis.only_if is not None:
                below[axis.only_if] = below.get(axis.only_if, 1) * len(values)
        for axis, values in self.searched():
            if axis.only_if is None:
                total *= sum(below.get((axis.name, value), 1) for value in values)
        return total

    def rate_at(self, rate_at_32: float, optimizer: str, batch_size: int) -> float:
        """The learning rate at `batch_size` that the optimizer's rule makes of one at batch 32."""
        return rate_at_32 * rates.factor(batch_size, self._rule(optimizer))

    def rate_at_32(self, recipe: Recipe) -> float | None:
        """The learning rate of a recipe carried back to batch 32; `None` if its optimizer keeps its own."""
        if recipe.learning_rate is None:
            return None
        return recipe.learning_rate / rates.factor(recipe.batch_size, self._rule(recipe.optimizer))

    def to_dict(self) -> dict[str, Any]:
        """All axes in JSON's own types, to tell one space from another; `policy` as it is on this machine."""
        axes = {
            **dataclasses.asdict(self),
            "policy": self.policies,
            "baseline": self.baseline.to_dict(),
        }
        del axes["default_sizes"]
        return {
            name: value
            for name, value in axes.items()
            if name in FIRST_ARGUMENTS or value != AXIS[name].default
        }
