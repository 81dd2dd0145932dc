"""The recipe: one complete way to train, as a frozen value."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from dataclasses import dataclass
from typing import Any

from kbatch import json_form, recompute_strategy
from kbatch.errors import RecipeError

OPTIMIZERS = ("sgd", "adam", "compiled")
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
# The fields of a recipe in the first projects, whose record keys are hashes over all of them. A
# later field is written only where it differs from its default, so that old keys stay valid.
FIRST_FIELDS = frozenset(
    ("batch_size", "optimizer", "learning_rate", "warmup_updates", "policy")
    + ("augmentation", "micro_batch_size", "jit_compile", "recompute")
)


@dataclass(frozen=True)
class Recipe:
    """One complete way to train a model.

    Use it to tell `kbatch.train` how to train, and to read the trials of a search. A recipe is a
    plain value: it compares with `==`, prints in words and can be written as JSON.

    Args:
        batch_size: Integer, examples per weight update. Defaults to `32`.
        optimizer: `"sgd"` (momentum 0.9), `"adam"`, or `"compiled"`, which keeps the optimizer that
            the model was compiled with. Defaults to `"adam"`.
        learning_rate: Float, learning rate of the optimizer after warm-up. `None` if, and only if,
            the optimizer is `"compiled"`. Defaults to `1e-3`.
        warmup_updates: Integer, number of weight updates over which the learning rate rises
            linearly. Defaults to `0`.
        policy: Keras dtype policy: `"float32"`, `"mixed_float16"` or `"mixed_bfloat16"`. Defaults
            to `"float32"`.
        augmentation: Name of an augmentation pipeline (see `kbatch.register_augmentation`).
            Defaults to `"none"`.
        micro_batch_size: Integer, examples per forward and backward pass; must divide `batch_size`.
            The gradients of several passes are accumulated until they make up a batch. `None` (the
            default) takes the whole batch in one pass.
        jit_compile: Boolean, whether XLA compiles the train step. Defaults to `False`.
        recompute: Which activations are recomputed in the backward pass instead of kept, to save
            memory (see `kbatch.recompute.plan`): `"none"`, `"minimal"`, `"sqrt"`, `"stages"`, or
            `"budget:0.5"`, which keeps at most half of the bytes at the least extra time. Defaults
            to `"none"`.
        label_smoothing: Float from 0 to below 1, the share of each label that is spread evenly over
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
        self._check_label_smoothing()
        self._check_learning_rate()
        self._check_micro_batch_size()

    def _check_label_smoothing(self) -> None:
        amount = self.label_smoothing
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < 1:
            raise RecipeError(
                "`label_smoothing` must be a number of at least 0 and below 1",
                amount,
                "Pass 0.1, say",
            )
        object.__setattr__(self, "label_smoothing", float(amount))

    def _check_micro_batch_size(self) -> None:
        if self.micro_batch_size is None:
            return
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
            return
        is_number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
        if rate is None or not is_number or not 0 < rate < math.inf:
            raise RecipeError(
                "`learning_rate` must be a finite number above 0",
                rate,
                "Pass the learning rate of the optimizer, such as 0.001",
            )
        object.__setattr__(self, "learning_rate", float(rate))

    @property
    def examples_per_pass(self) -> int:
        """Integer, examples per forward and backward pass: the micro-batch, or the whole batch."""
        return self.micro_batch_size or self.batch_size

    @property
    def accumulation_steps(self) -> int:
        """Integer, forward and backward passes per weight update."""
        return self.batch_size // self.examples_per_pass

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as a dict that JSON can hold.

        A field that the first projects did not have is left out where it has its default.
        """
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name in FIRST_FIELDS or value != getattr(type(self), name)
        }

    def to_json(self) -> str:
        """Return the recipe as one line of JSON."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Read the recipe that `to_json` wrote; missing fields take their defaults.

        Raises:
            RecipeError: If the text is not JSON, or does not hold the fields of a recipe.
        """
        return cls.from_dict(json_form.parse(text, _no_recipe))

    @classmethod
    def from_dict(cls, fields: Any) -> Recipe:
        """Make a recipe of its fields, or of one row of `kbatch.results.load`.

        Args:
            fields: Dict of the fields of a recipe; or one row of results, as a `pandas.Series` or
                dict, with all columns of the table.

        Raises:
            RecipeError: If a field is unknown, or a row lacks a column of a recipe.

        Example:
        ```python
        trials = kbatch.results.load("runs/pets").sort_values("score", ascending=False)
        recipe = kbatch.Recipe.from_dict(trials.iloc[0])
        ```
        """
        try:
            # .keys(), since iterating over a row of pandas gives its values
            given = {str(name): fields[name] for name in fields.keys()}  # noqa: SIM118
        except (AttributeError, TypeError, KeyError):
            raise RecipeError(
                "The fields of a recipe must be a dict or one row of results",
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
        optional = {
            f"warm-up {self.warmup_updates}": self.warmup_updates > 0,
            self.policy: self.policy != "float32",
            self.augmentation: self.augmentation != "none",
            "jit": self.jit_compile,
            f"recompute {self.recompute}": self.recompute != "none",
            f"label smoothing {self.label_smoothing:g}": self.label_smoothing > 0,
        }
        return ", ".join([*words, *(word for word, differs in optional.items() if differs)])


def _no_recipe(received: str) -> RecipeError:
    return RecipeError("A recipe must be what Recipe.to_json wrote", received, "Write it again")


def _of_row(row: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """Return the fields of a recipe from a row of results.

    In a row, pandas may have turned whole numbers into floats and `None` into NaN.
    """
    missing = FIRST_FIELDS - set(row)
    if missing:
        raise RecipeError(
            "A row of results must have every column of a recipe",
            f"no {', '.join(sorted(missing))}",
            "Pass a whole row",
        )
    fields = {name: _plain(row[name]) for name in known & set(row)}
    if fields["optimizer"] == "compiled":
        fields |= {"learning_rate": None}  # the column holds the rate of the model's optimizer
    if fields["micro_batch_size"] == fields["batch_size"]:
        fields |= {"micro_batch_size": None}
    return fields


def _plain(value: Any) -> Any:
    """Return a plain Python value: no NumPy scalar, `None` for NaN, an int for a whole float."""
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, float) and not math.isfinite(plain):
        return None
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


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
