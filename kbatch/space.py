"""Space: the axes of a search, what they may hold together, and their combinations."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kbatch.axes import AXES, AXIS, RATED, RESERVED
from kbatch.axis import (
    Axis,
    Range,
    RateAxis,
    batch_size_of,
    by_optimizer,
    count,
    is_fixed,
    plain,
    rates_of,
)
from kbatch.errors import SpaceError, made_in_one_frame
from kbatch.recipe import Recipe
from kbatch.recipe_words import (
    COMPILED,
    CONSTANT,
    PLAIN,
    BatchGrowth,
    check_companions,
    check_policies,
    measures_noise,
)
from kbatch.rules import batch_schedule, scaling
from kbatch.rules.scaling import DEFAULT_LEARNING_RATE_RULES, recipe_fields, warmup_updates
from kbatch.runtime import device


def check(space: Any, rules: Mapping[str, str], of_optimizer: Mapping[str, Any]) -> None:
    """Refuse values that a recipe could not have together."""
    _check_compiled(space, of_optimizer)
    _check_drawn(space)
    check_policies(SpaceError, space.policy or (), space.optimizer, space.training)
    schedules = space.batch_schedule
    check_companions(SpaceError, schedules, space.jit_compile or (), space.training)
    if any(map(measures_noise, schedules)):
        scaling.check_halves(space.batch_size)
    own = {name: rule for name, rule in rules.items() if rule != DEFAULT_LEARNING_RATE_RULES[name]}
    if own and tuple(schedules) != (CONSTANT,):
        raise SpaceError(
            "The learning rate of a growing batch must follow the usual rule",
            f"learning_rate_rule={own} and batch_schedule={schedules}",
            "Leave one of them out",
        )


def _check_drawn(space: Any) -> None:
    """Refuse values of an axis that the space would never draw."""
    for axis in AXES:
        if axis.only_if is None or axis.of:
            continue
        name, others = axis.only_if
        given = getattr(space, axis.name)
        if given != axis.default and set(others).isdisjoint(getattr(space, name)):
            raise SpaceError(
                f"`{axis.name}` must come with one of {', '.join(map(str, others))} as `{name}`",
                f"{axis.name}={given} with {name}={getattr(space, name)}",
                f"Leave {axis.name} out, or add one of them",
            )


def _check_compiled(space: Any, of_optimizer: Mapping[str, Any]) -> None:
    """Refuse settings of an optimizer in a space that leaves all of them to the model's own."""
    given = {name: getattr(space, name) for name in of_optimizer}
    idle = [f"{name}={value}" for name, value in given.items() if value != of_optimizer[name]]
    if idle and set(space.optimizer) == {COMPILED}:
        raise SpaceError(
            'With optimizer="compiled" alone its settings must be the model\'s own',
            ", ".join(idle),
            "Leave them out, or name an optimizer too, such as sgd",
        )


def smallest_step(space: Any, batch_sizes: Sequence[int]) -> int:
    """Return the fewest examples of a train step among the recipes of a space."""
    steps = []
    for size, schedule in itertools.product(batch_sizes, space.batch_schedule):
        # other methods take a batch in one step
        of_pass = space.micro_batch(size, schedule) if PLAIN in space.training else None
        factor = (BatchGrowth.parse(schedule) or BatchGrowth()).factor
        steps.append(batch_schedule.first_pass(size, factor, size // (of_pass or size)))
    return min(steps, default=2)


# Arguments of a space in the first projects. A later axis is a fact of a project only where it
# differs from its default, so that old projects can be resumed.
FIRST_ARGUMENTS = frozenset(
    ("optimizer", "learning_rate", "policy", "augmentation", "jit_compile", "recompute")
    + ("micro_batch_size", "batch_size", "baseline", "learning_rate_rule", "warmup_passes")
)
FIRST_OPTIMIZERS = ("sgd", "adam")
# Arguments with a value for each optimizer, and an example of each.
MAPPINGS = {
    "learning_rate": '{"sgd": (1e-3, 1e-1), "adam": 1e-3}',
    "learning_rate_rule": '{"sgd": "linear", "adam": "sqrt"}',
}


def _default_rates() -> dict[str, RateAxis]:
    return {
        "sgd": (1e-3, 1e-1),
        "adam": (1e-5, 1e-2),
        "adamw": (1e-5, 1e-2),
        "lars": (1e-1, 30.0),
        "lamb": (1e-4, 1e-1),
    }


@made_in_one_frame
@dataclass(frozen=True)
class Space:
    """The recipes that a search may draw.

    Use it to fix, narrow or extend an axis: one value fixes it, several are searched. KerasTuner
    shows a searched axis under the name of the argument, and learning rates as `learning_rate_sgd`
    and so on. These names are reserved: the `hp` calls in `build(hp)` may use any other.

    Args:
        optimizer: Names out of `"sgd"`, `"adam"`, `"adamw"`, `"lars"`, `"lamb"`, `"compiled"`.
            Defaults to `("sgd", "adam")`.
        learning_rate: Dict from optimizer to its learning rates *at batch 32*: a tuple
            `(lowest, highest)` is a range drawn on a log scale, a list is a choice, a float is
            fixed. Defaults to `(1e-3, 1e-1)` for SGD, `(1e-5, 1e-2)` for Adam and AdamW,
            `(1e-1, 30.0)` for LARS and `(1e-4, 1e-1)` for LAMB.
        policy: Policies; see `Recipe`. `None` (the default) takes those that are fast on this
            machine: float32, and also mixed_float16 on a GPU with tensor cores (compute capability
            7.0). See `policies`.
        augmentation: Names of augmentation pipelines. Defaults to `("none",)`.
        jit_compile: Booleans. `None` (the default) takes False, and on a GPU also True, which is
            Keras' own default there: a baseline that XLA compiles is compared with trials that it
            compiles too. `HyperModel` leaves True out if Keras would not compile the model by XLA.
        recompute: Strategies of recomputing activations, such as
            `("none", "minimal", "budget:0.5")`; see `Recipe`. Defaults to `("none",)`.
        micro_batch_size: Integer, the largest number of examples per forward and backward pass. A
            larger batch accumulates over equal passes, and must have a divisor near this limit.
            `None` (the default) sets no limit.
        batch_size: Integers, examples per weight update. Declared last, so that a grid varies it
            first. Defaults to `(16, 32, 64, 128, 256, 512)`, without sizes above the number of
            examples.
        baseline: `Recipe` that the user has today, trained once in addition to the trials. Defaults
            to `Recipe()`. If `build` compiles the model, the baseline has the optimizer and the
            learning rate of that model. A baseline of policy float32 is trained under the global
            dtype policy.
        learning_rate_rule: Dict from optimizer to the rule that scales a rate from batch 32:
            `"linear"`, the default for SGD, `"sqrt"`, for the others, `"constant"`, or `"gain:480"`
            at a `kbatch.noise_scale` of 480 examples; see `kbatch.rules.scaling`.
        warmup_passes: Floats, passes over the data in warm-up for very large batches. A batch takes
            `warmup_passes * (1 - 32 / batch_size)`, none up to batch 32, and at most a tenth of
            the horizon. Defaults to `(1.0,)`.
        label_smoothing: Floats, shares of each label that are spread over all classes, such as
            `(0, 0.1)`; needs a cross-entropy loss. Defaults to `(0.0,)`.
        weight_decay: Floats, decoupled weight decay *at batch 32*, such as `(0, 0.01)`. Defaults to
            `(0.0,)`.
        weight_decay_rule: `"sqrt"` (the default: weight decay grows with the square root of the
            batch size) or `"constant"`.
        momentum: Floats, momentum (`beta_1` of the Adam family) at batch 32. Defaults to `(0.9,)`.
        momentum_rule: `"constant"` (the default) or `"examples"`, which carries `momentum` and
            `ema` to the batch size, so that they span the same number of examples.
        dropout_scale: Floats, factors on the rates of the model's dropout. Defaults to `(1.0,)`.
        dropout_rule: `"constant"` (the default) or `"sqrt"`: dropout grows with the square root of
            the batch size, up to 0.5.
        schedule: Names out of `"constant"`, `"cosine"`, `"steps"`; see `Recipe`. Defaults to
            `("constant",)`.
        training: Such as `("plain", "sam:0.05", "proximal:0.1")`; see `Recipe`. Defaults to
            `("plain",)`.
        clip_norm: Floats; `None` or 0 for no clipping. Defaults to `(None,)`.
        ema: Floats, momentum of the weights' moving average at batch 32; `None` or 0 for none.
            Defaults to `(None,)`.
        batch_schedule: Such as `("constant", "linear:8")`; see `Recipe`. Not together with XLA. By
            `"noise:8"` a batch takes two passes or more. Defaults to `("constant",)`.
        normalization: Names out of `"batch"`, `"group"`; see `Recipe`. Defaults to `("batch",)`.
        beta_2: Floats, `beta_2` of Adam, AdamW and LAMB, the same at all batch sizes. Drawn with
            these optimizers only. Defaults to `(0.999,)`.

    The settings of an optimizer (warm-up, weight decay, momentum, clipping and schedules) are the
    model's own for `optimizer="compiled"`, and refused if the space has no other.

    Raises:
        SpaceError: If a value of an axis is not allowed.

    Example:
    >>> space = Space(optimizer="sgd", batch_size=(32, 128), policy="float32")
    >>> space.optimizer, space.batch_size
    (('sgd',), (32, 128))
    """

    optimizer: Any = AXIS["optimizer"].default
    learning_rate: Mapping[str, RateAxis] = field(default_factory=_default_rates)
    policy: Any = None
    augmentation: Any = AXIS["augmentation"].default
    jit_compile: Any = None
    recompute: Any = AXIS["recompute"].default
    micro_batch_size: int | None = None
    batch_size: Any = None
    baseline: Recipe = field(default_factory=Recipe)
    learning_rate_rule: Mapping[str, str] = field(
        default_factory=lambda: dict(scaling.DEFAULT_LEARNING_RATE_RULES)
    )
    warmup_passes: Any = AXIS["warmup_passes"].default
    label_smoothing: Any = AXIS["label_smoothing"].default
    weight_decay: Any = AXIS["weight_decay"].default
    weight_decay_rule: Any = AXIS["weight_decay_rule"].default
    momentum: Any = AXIS["momentum"].default
    momentum_rule: Any = AXIS["momentum_rule"].default
    dropout_scale: Any = AXIS["dropout_scale"].default
    dropout_rule: Any = AXIS["dropout_rule"].default
    schedule: Any = AXIS["schedule"].default
    training: Any = AXIS["training"].default
    clip_norm: Any = AXIS["clip_norm"].default
    ema: Any = AXIS["ema"].default
    batch_schedule: Any = AXIS["batch_schedule"].default
    normalization: Any = AXIS["normalization"].default
    beta_2: Any = AXIS["beta_2"].default
    # whether the batch sizes are the defaults
    default_sizes: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        default = AXIS["batch_size"].default
        if self.batch_size is None:
            object.__setattr__(self, "batch_size", default)
        # by identity: `dataclasses.replace` hands on the very object, a user writes another
        object.__setattr__(self, "default_sizes", self.batch_size is default)
        for axis in AXES:
            given = None if axis.of else getattr(self, axis.name)
            if given is not axis.default:
                object.__setattr__(self, axis.name, axis.values(plain(given)))
        if self.micro_batch_size is not None:
            limit = batch_size_of(self.micro_batch_size)
            object.__setattr__(self, "micro_batch_size", limit)
            scaling.check_micro_batches(self.batch_size, limit)
        for name, example in MAPPINGS.items():
            object.__setattr__(self, name, by_optimizer(name, getattr(self, name), RATED, example))
        for name in (each for each in self.optimizer if each in RATED):
            rates_of(name, self.learning_rate.get(name))
            scaling.learning_rate_factor(scaling.REFERENCE_BATCH_SIZE, self._rule(name))
        if not isinstance(self.baseline, Recipe):
            raise SpaceError("`baseline` must be a Recipe", self.baseline, "Pass kbatch.Recipe(…)")
        rated = [name for name in self.optimizer if name in RATED]
        of_optimizer = {axis.name: axis.default for axis in AXES if axis.of_optimizer}
        check(self, {name: self._rule(name) for name in rated}, of_optimizer)

    def _rule(self, optimizer: str) -> str:
        return self.learning_rate_rule.get(
            optimizer, scaling.DEFAULT_LEARNING_RATE_RULES[optimizer]
        )

    @property
    def policies(self) -> tuple[str, ...]:
        """Tuple of dtype policies: those of `policy`, or those that are fast on this machine.

        Only if `policy` is `None`, TensorFlow is imported and asked for the GPU.
        """
        return device.fast_policies() if self.policy is None else self.policy

    @property
    def compilations(self) -> tuple[bool, ...]:
        """Tuple of booleans: those of `jit_compile`, or those that are usual on this machine.

        Only if `jit_compile` is `None`, TensorFlow is imported and asked for the GPU.
        """
        if self.jit_compile is not None:
            return self.jit_compile  # type: ignore[no-any-return]
        # XLA compiles every batch size anew
        return device.compilations() if self._is_of_constant_batches() else (False,)

    def _is_of_constant_batches(self) -> bool:
        return tuple(self.batch_schedule) == (CONSTANT,)

    @property
    def reserved(self) -> frozenset[str]:
        """Frozenset of names that the user's own hyperparameters must not have."""
        return RESERVED

    def declare(self, hp: Any) -> None:
        """Declare the axes of several values as hyperparameters, the batch size last.

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
        """Return the recipe for the values of hyperparameters.

        Args:
            hp: `keras_tuner.HyperParameters` in which `declare` was called.
            examples: Integer, number of training examples, from which warm-up is computed. `None`
                (the default) leaves warm-up out, for a model that is built but not trained.
            horizon_examples: Float, examples that the baseline trains on within the horizon;
                warm-up takes at most a tenth of its updates. `None` (the default) sets no limit.
        """
        drawn = self.drawn(hp)
        compiled = drawn["optimizer"] == COMPILED
        axes = [axis for axis in AXES if axis.in_recipe and not (compiled and axis.of_optimizer)]
        at_32 = {axis.name: drawn[axis.name] for axis in axes if axis.is_drawn(drawn)}
        fields = recipe_fields(at_32, drawn, self._rule)
        schedule = fields.get("batch_schedule", CONSTANT)
        fields["micro_batch_size"] = self.micro_batch(drawn["batch_size"], schedule)
        if examples is not None:
            fields |= warmup_updates(drawn, examples, horizon_examples)
        return Recipe(**fields)

    def micro_batch(self, batch_size: int, schedule: str) -> int | None:
        """Return the micro-batch of a recipe with this batch and `batch_schedule`; else `None`."""
        of = scaling.micro_batch_by_noise if measures_noise(schedule) else scaling.micro_batch_of
        return of(batch_size, self.micro_batch_size)

    def drawn(self, hp: Any) -> dict[str, Any]:
        """Return the value of every axis by name, including the fixed ones.

        Args:
            hp: `keras_tuner.HyperParameters` in which `declare` was called.
        """
        drawn: dict[str, Any] = {}
        for axis, values in self.searched():
            if axis.is_drawn(drawn):
                drawn[axis.name] = axis.drawn(hp, values)
        return drawn

    def searched(self) -> Iterator[tuple[Axis, Any]]:
        """Iterate over the axes of this space, with their values or their `Range`."""
        for axis in AXES:
            if axis.only_if is None:
                yield axis, self._values(axis)
                continue
            name, others = axis.only_if
            if not set(others).isdisjoint(self._values(AXIS[name])):
                yield axis, self._values(axis) if not axis.of else self._rates(axis, *others)

    def _rates(self, axis: Axis, optimizer: str) -> tuple[float, ...] | Range:
        """The learning rates of an optimizer."""
        return rates_of(optimizer, getattr(self, axis.of)[optimizer])

    def _values(self, axis: Axis) -> tuple[Any, ...]:
        """The values of an axis, where the space leaves them open those of this machine."""
        return getattr(self, axis.of_machine or axis.name)

    def _scope(self, hp: Any, axis: Axis) -> Any:
        """Return the scope to declare an axis in: below the value that it depends on, if any."""
        if axis.only_if is None or is_fixed(self._values(AXIS[axis.only_if[0]])):
            return contextlib.nullcontext()
        parent, values = axis.only_if
        return hp.conditional_scope(parent, list(values))

    def size(self) -> int | None:
        """Count the recipes, without `build`'s own values; `None` if a rate is from a range."""
        return count(list(self.searched()))

    def rate_at_32(self, recipe: Recipe) -> float | None:
        """Scale the learning rate of a recipe back to batch 32; `None` if the recipe has none."""
        if recipe.learning_rate is None:
            return None
        scale = scaling.learning_rate_factor(recipe.batch_size, self._rule(recipe.optimizer))
        return recipe.learning_rate / scale

    def to_dict(self) -> dict[str, Any]:
        """Return all axes as a dict that JSON can hold, with what this machine decides."""
        axes = {
            **dataclasses.asdict(self),
            **{axis.name: self._values(axis) for axis in AXES if axis.of_machine},
            "baseline": self.baseline.to_dict(),
        }
        del axes["default_sizes"]
        for name in MAPPINGS:  # of optimizers in old projects' facts
            known = {*FIRST_OPTIMIZERS, *self.optimizer}
            axes[name] = {each: given for each, given in axes[name].items() if each in known}
        return {
            name: value
            for name, value in axes.items()
            if name in FIRST_ARGUMENTS or value != AXIS[name].default
        }


PLAIN_COMBINATION = Recipe()
OF_MEMORY = [axis for axis in AXES if axis.decides_memory]
NAMES = [axis.name for axis in OF_MEMORY]
# the first three (policy, optimizer, jit_compile) are always shown, later ones if not the default
ALWAYS_SHOWN = 3

_namedtuple: Any = collections.namedtuple  # untyped, since mypy cannot read fields of a table
_Parts: Any = _namedtuple(
    "_Parts", NAMES, defaults=[getattr(PLAIN_COMBINATION, name) for name in NAMES]
)


class Combination(_Parts):
    """A value for each axis that decides memory; a missing value has the default of `Recipe`.

    Example:
    >>> print(Combination("float32", "sgd", True, "minimal"))
    sgd, float32, jit, recompute minimal
    """

    policy: str
    optimizer: str
    jit_compile: bool
    recompute: str

    __slots__ = ()

    @classmethod
    def of(cls, recipe: Recipe) -> Combination:
        """Return the combination of a recipe."""
        return cls(*(axis.like_in_memory(getattr(recipe, axis.name)) for axis in OF_MEMORY))

    def __str__(self) -> str:
        words = [self.optimizer, self.policy, *(["jit"] if self.jit_compile else [])]
        return ", ".join([*words, *self.later_words()])

    def later_words(self) -> list[str]:
        """Return words for the axes after the first three that do not have their default."""
        later = NAMES[ALWAYS_SHOWN:]
        return [
            f"{name} {getattr(self, name)}"
            for name in later
            if getattr(self, name) != getattr(PLAIN_COMBINATION, name)
        ]


def combinations(space: Space) -> list[Combination]:
    """Return all combinations of a space that may differ in memory, each once."""
    values = [
        dict.fromkeys(map(axis.like_in_memory, given))
        for axis, given in space.searched()
        if axis.decides_memory
    ]
    return [Combination(*each) for each in itertools.product(*values)]
