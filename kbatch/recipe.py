"""Recipe: one complete way to train, as a frozen value."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from dataclasses import dataclass
from typing import Any

from kbatch import recompute_strategy
from kbatch.errors import RecipeError

OPTIMIZERS = ("sgd", "adam", "compiled")
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
# Of the recipes that the first projects were begun with: the keys of their records are made of all
# of these.
FIRST_FIELDS = frozenset(
    ("batch_size", "optimizer", "learning_rate", "warmup_updates", "policy")
    + ("augmentation", "micro_batch_size", "jit_compile", "recompute")
)


@dataclass(frozen=True)
class Recipe:
    """One complete way to train a model.

    Use it to say how `kbatch.train` trains, and to read what a search tried: a recipe is a plain
    value that compares with `==`, prints in words and travels as JSON.

    Args:
        batch_size: Integer, examples per weight update. Defaults to `32`.
        optimizer: `"sgd"` (momentum 0.9), `"adam"`, or `"compiled"`, which leaves the optimizer
            that the model was compiled with untouched. Defaults to `"adam"`.
        learning_rate: Float, exactly what the optimizer gets once warm-up is over. `None` if, and
            only if, the optimizer is `"compiled"`. Defaults to `1e-3`.
        warmup_updates: Integer, weight updates over which the learning rate rises linearly.
            Defaults to `0`.
        policy: Keras dtype policy: `"float32"`, `"mixed_float16"` or `"mixed_bfloat16"`. Defaults
            to `"float32"`.
        augmentation: Name of an augmentation pipeline (see `kbatch.register_augmentation`).
            Defaults to `"none"`.
        micro_batch_size: Integer, examples per forward and backward pass; must divide `batch_size`,
            which is then reached by gradient accumulation. `None` (the default) means the whole
            batch at once.
        jit_compile: Boolean, whether XLA compiles the train step. Defaults to `False`.
        recompute: What the backward pass makes again instead of the forward pass keeping it (see
            `kbatch.recompute.plan`): `"none"`, `"minimal"`, `"sqrt"`, `"stages"`, or `"budget:0.5"`
            for the least extra time that keeps at most half of the bytes. Defaults to `"none"`.
        label_smoothing: Float, at least 0 and below 1: how much of each label is spread evenly over
            all classes (Szegedy et al. 2016). Needs a cross-entropy loss. Defaults to `0.0`.

    Raises:
        RecipeError: If a value is not one of the above.

    Example:
    >>> recipe = Recipe(batch_size=256, optimizer="sgd", learning_rate=0.08, micro_batch_size=64)
    >>> recipe.accumulation_steps
    4
    >>> print(recipe)
    batch 256 (4 x 64), sgd 0.08
    >>> Recipe.from_json(recipe.to_json()) == recipe
    True
    """

    batch_size: int = 32
    optimizer: str = "adam"
    learning_rate: float | None = 1e-3
    warmup_updates: int = 0
    policy: str = "float32"
    augmentation: str = "none"
    micro_batch_size: int | None = None
    jit_compile: bool = False
    recompute: str = "none"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        _whole(self, "batch_size", 1)
        _whole(self, "warmup_updates", 0)
        _one_of(self, "optimizer", OPTIMIZERS)
        _one_of(self, "policy", POLICIES)
        if not isinstance(self.augmentation, str) or not self.augmentation:
            raise RecipeError(
                "`augmentation` must be the name of a pipeline",
                self.augmentation,
                'Pass "none" or another name',
            )
        if not isinstance(self.jit_compile, bool):
            raise RecipeError(
                "`jit_compile` must be True or False",
                self.jit_compile,
                "Say which: a recipe never means 'auto'",
            )
        if recompute_strategy.Strategy.parse(self.recompute) is None:
            raise RecipeError(
                f"`recompute` must be {recompute_strategy.WORDS}",
                self.recompute,
                "Pass one of these",
            )
        amount = self.label_smoothing
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < 1:
            raise RecipeError(
                "`label_smoothing` must be a number of at least 0 and below 1",
                amount,
                "Pass 0.1, say",
            )
        object.__setattr__(self, "label_smoothing", float(amount))
        self._check_learning_rate()
        if self.micro_batch_size is not None:
            _whole(self, "micro_batch_size", 1)
            if self.batch_size % self.micro_batch_size:
                raise RecipeError(
                    "`micro_batch_size` must divide `batch_size`",
                    f"{self.micro_batch_size} for a batch of {self.batch_size}",
                    "Pass a divisor, or None for the whole batch at once",
                )

    def _check_learning_rate(self) -> None:
        rate = self.learning_rate
        if self.optimizer == "compiled":
            if rate is not None or self.warmup_updates:
                raise RecipeError(
                    'With optimizer="compiled" the learning rate must be the model\'s own',
                    f"learning_rate={rate!r}, warmup_updates={self.warmup_updates}",
                    "Pass learning_rate=None and warmup_updates=0, or name an optimizer",
                )
        elif (
            isinstance(rate, bool)
            or not isinstance(rate, (int, float))
            or not math.isfinite(rate)
            or rate <= 0
        ):
            raise RecipeError(
                "`learning_rate` must be a finite number above 0",
                rate,
                "Pass the rate the optimizer gets, such as 0.001",
            )
        else:
            object.__setattr__(self, "learning_rate", float(rate))

    @property
    def examples_per_pass(self) -> int:
        """Examples per forward and backward pass: the micro-batch, or the whole batch."""
        return self.micro_batch_size or self.batch_size

    @property
    def accumulation_steps(self) -> int:
        """Forward and backward passes per weight update."""
        return self.batch_size // self.examples_per_pass

    def to_dict(self) -> dict[str, Any]:
        """The recipe in JSON's own types; fields that came later than the first projects only where they say something."""
        fields = dataclasses.asdict(self)
        return {
            name: value
            for name, value in fields.items()
            if name in FIRST_FIELDS or value != getattr(type(self), name)
        }

    def to_json(self) -> str:
        """The recipe as one line of JSON."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """The recipe that `to_json` wrote; fields that are missing take their defaults."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, fields: Any) -> Recipe:
        """The recipe with these fields, or the one that a row of `kbatch.results.load` tells of.

        Args:
            fields: A dict of a recipe's own fields, or a row: a `pandas.Series` or dict with the
                table's other columns too.

        Raises:
            RecipeError: If a field is unknown, or a row lacks one of a recipe's columns.

        Example:
        ```python
        trials = kbatch.results.load("runs/pets").sort_values("score", ascending=False)
        recipe = kbatch.Recipe.from_dict(trials.iloc[0])
        ```
        """
        try:
            given = {str(name): fields[name] for name in fields.keys()}  # noqa: SIM118 - iterating over a row gives its values
        except (AttributeError, TypeError, KeyError):
            raise RecipeError(
                "A recipe's fields must be a dict or one row of results",
                type(fields).__name__,
                "Pass trials.iloc[0]",
            ) from None
        known = {field.name for field in dataclasses.fields(cls)}
        if "recipe" in given and "trial" in given:
            return cls(**_of_row(given, known))
        unknown = set(given) - known
        if unknown:
            raise RecipeError(
                "A recipe must have only known fields",
                sorted(unknown),
                "Read it with the version of kbatch that wrote it",
            )
        return cls(**given)

    def __str__(self) -> str:
        words = [f"batch {self.batch_size}"]
        if self.accumulation_steps > 1:
            words[0] += f" ({self.accumulation_steps} x {self.micro_batch_size})"
        words.append(
            self.optimizer
            if self.learning_rate is None
            else f"{self.optimizer} {self.learning_rate:.3g}"
        )
        if self.warmup_updates:
            words.append(f"warm-up {self.warmup_updates}")
        if self.policy != "float32":
            words.append(self.policy)
        if self.augmentation != "none":
            words.append(self.augmentation)
        if self.jit_compile:
            words.append("jit")
        if self.recompute != "none":
            words.append(f"recompute {self.recompute}")
        if self.label_smoothing:
            words.append(f"label smoothing {self.label_smoothing:g}")
        return ", ".join(words)


def _of_row(row: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """A recipe's fields out of a row of results, where pandas may have made numbers of whole numbers and NaN of None."""
    missing = FIRST_FIELDS - set(row)
    if missing:
        raise RecipeError(
            "A row of results must have every column of a recipe",
            f"no {', '.join(sorted(missing))}",
            "Pass a whole row",
        )
    fields = {name: _plain(row[name]) for name in known & set(row)}
    if fields["optimizer"] == "compiled":
        fields |= {"learning_rate": None}  # the column has the model's own rate
    if fields["micro_batch_size"] == fields["batch_size"]:
        fields |= {"micro_batch_size": None}
    return fields


def _plain(value: Any) -> Any:
    """A value as Python has it: no NumPy scalars, no NaN, whole numbers whole."""
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, float) and not math.isfinite(plain):
        return None
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def whole_number(value: Any, least: int = 1) -> int | None:
    """The `int` that a value is, NumPy's among them; `None` if it is none, a boolean, or smaller than `least`."""
    try:
        whole = operator.index(value)
    except TypeError:
        return None
    return None if isinstance(value, bool) or whole < least else whole


def _whole(recipe: Recipe, name: str, least: int) -> None:
    value = getattr(recipe, name)
    whole = whole_number(value, least)
    if whole is None:
        raise RecipeError(
            f"`{name}` must be a whole number of at least {least}",
            repr(value),
            f"Pass an int such as {max(least, 32)}",
        )
    object.__setattr__(recipe, name, whole)


def _one_of(recipe: Recipe, name: str, allowed: tuple[str, ...]) -> None:
    value = getattr(recipe, name)
    if value not in allowed:
        raise RecipeError(
            f"`{name}` must be one of {', '.join(allowed)}", value, "Pass one of these names"
        )
