"""The space of a search: the recipes that it may draw."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbatch.axes import AXES, AXIS, RATED, RESERVED
from kbatch.axis import Axis, RateAxis, batch_size_of, is_fixed, plain, rates_of
from kbatch.device import precision
from kbatch.errors import SpaceError
from kbatch.option import Range
from kbatch.recipe import Recipe
from kbatch.rules import learning_rate as rates
from kbatch.rules import micro_batch, warmup

# Arguments of a space in the first projects. A later axis is a fact of a project only where it
# differs from its default, so that old projects can be resumed.
FIRST_ARGUMENTS = frozenset(
    ("optimizer", "learning_rate", "policy", "augmentation", "jit_compile", "recompute")
    + ("micro_batch_size", "batch_size", "baseline", "learning_rate_rule", "warmup_passes")
)


def _default_rates() -> dict[str, RateAxis]:
    return {"sgd": (1e-3, 1e-1), "adam": (1e-5, 1e-2)}


@dataclass(frozen=True)
class Space:
    """The recipes that a search may draw.

    Use it to fix, narrow or extend an axis: pass one value to fix it, or several to search over
    them. KerasTuner shows an axis of several values under the name of the argument, and learning
    rates as `learning_rate_sgd` and `learning_rate_adam`. These names are reserved: the `hp` calls
    in `build(hp)` may use any other.

    Args:
        optimizer: Names out of `"sgd"`, `"adam"`, `"compiled"`. Defaults to `("sgd", "adam")`.
        learning_rate: Dict from optimizer to its learning rates *at batch 32*: a tuple
            `(lowest, highest)` is a range drawn on a log scale, a list is a choice, a float is
            fixed. Defaults to `(1e-3, 1e-1)` for SGD and `(1e-5, 1e-2)` for Adam.
        policy: Keras dtype policies. `None` (the default) takes the policies that are fast on this
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
        learning_rate_rule: Dict from optimizer to the rule that scales a rate from batch 32 to
            another batch size: `"linear"`, `"sqrt"` or `"constant"`. Defaults to linear for SGD
            (Goyal et al. 2017) and the square root for Adam (Malladi et al. 2022).
        warmup_passes: Floats, passes over the data in warm-up for very large batches. A batch takes
            `warmup_passes * (1 - 32 / batch_size)`, none up to batch 32, and at most a tenth of
            the horizon. Defaults to `(1.0,)`.
        label_smoothing: Floats, shares of each label that are spread over all classes, such as
            `(0, 0.1)`; needs a cross-entropy loss. Defaults to `(0.0,)`.

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
    learning_rate_rule: Mapping[str, str] = field(default_factory=lambda: dict(rates.DEFAULT_RULES))
    warmup_passes: Any = AXIS["warmup_passes"].default
    label_smoothing: Any = AXIS["label_smoothing"].default
    # whether the batch sizes are the defaults
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
        """Check a mapping from optimizer, and keep its values without NumPy."""
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
        """Tuple of dtype policies: those of `policy`, or those that are fast on this machine.

        Only if `policy` is `None`, TensorFlow is imported and asked for the GPU.
        """
        return precision.fast_policies() if self.policy is None else self.policy

    @property
    def compilations(self) -> tuple[bool, ...]:
        """Tuple of booleans: those of `jit_compile`, or those that are usual on this machine.

        Only if `jit_compile` is `None`, TensorFlow is imported and asked for the GPU.
        """
        return precision.compilations() if self.jit_compile is None else self.jit_compile

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
        """Return the value of every axis by name, including the fixed ones.

        Args:
            hp: `keras_tuner.HyperParameters` in which `declare` was called.
        """
        drawn: dict[str, Any] = {}
        for axis, values in self.searched():
            if axis.only_if is None or drawn[axis.only_if[0]] == axis.only_if[1]:
                drawn[axis.name] = axis.check(values[0] if is_fixed(values) else hp.get(axis.name))
        return drawn

    def searched(self) -> Iterator[tuple[Axis, Any]]:
        """Iterate over the axes of this space, with their values or their `Range`."""
        for axis in AXES:
            if axis.only_if is None:
                yield axis, self._values(axis)
            elif axis.only_if[1] in getattr(self, axis.only_if[0]):
                yield axis, rates_of(axis.only_if[1], getattr(self, axis.of)[axis.only_if[1]])

    def _values(self, axis: Axis) -> tuple[Any, ...]:
        """The values of an axis, where the space leaves them open those of this machine."""
        return getattr(self, axis.of_machine or axis.name)

    def _scope(self, hp: Any, axis: Axis) -> Any:
        """Return the scope to declare an axis in: below the value that it depends on, if any."""
        if axis.only_if is None or is_fixed(self._values(AXIS[axis.only_if[0]])):
            return contextlib.nullcontext()
        parent, value = axis.only_if
        return hp.conditional_scope(parent, [value])

    def size(self) -> int | None:
        """Count the recipes of the space; `None` if a learning rate is drawn from a range.

        Hyperparameters that `build` declares are not counted.
        """
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
        """Scale a learning rate from batch 32 to `batch_size` by the rule of the optimizer."""
        return rate_at_32 * rates.factor(batch_size, self._rule(optimizer))

    def rate_at_32(self, recipe: Recipe) -> float | None:
        """Scale the learning rate of a recipe back to batch 32; `None` if the recipe has none."""
        if recipe.learning_rate is None:
            return None
        return recipe.learning_rate / rates.factor(recipe.batch_size, self._rule(recipe.optimizer))

    def to_dict(self) -> dict[str, Any]:
        """Return all axes as a dict that JSON can hold, with what this machine decides."""
        axes = {
            **dataclasses.asdict(self),
            **{axis.name: self._values(axis) for axis in AXES if axis.of_machine},
            "baseline": self.baseline.to_dict(),
        }
        del axes["default_sizes"]
        return {
            name: value
            for name, value in axes.items()
            if name in FIRST_ARGUMENTS or value != AXIS[name].default
        }
