"""Recipe: one way to train a model, as a frozen value."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kbatch import plain_text
from kbatch.errors import RecipeError, in_one_frame, made_in_one_frame
from kbatch.recipe_words import (
    ADAMS,
    CHECKS,
    COMPILED,
    CONSTANT,
    EXACT,
    MEAN,
    OF_OPTIMIZER,
    BatchGrowth,
    TrainingMethod,
    check_companions,
    check_policies,
    is_number,
    measures_noise,
    whole_number,
)
from kbatch.script.script import Places, script


def checked_learning_rate(recipe: Any) -> float | None:
    """Return the learning rate as a recipe holds it."""
    rate = recipe.learning_rate
    if recipe.optimizer == COMPILED:
        _check_compiled(recipe)
        return None
    if not is_number(rate) or not float(rate) > 0:
        raise RecipeError(
            "`learning_rate` must be a finite number above 0",
            rate,
            "Pass the learning rate of the optimizer, such as 0.001",
        )
    return float(rate)


def checked_micro_batch_size(recipe: Any) -> int | None:
    """Return the micro-batch size as a recipe holds it."""
    if recipe.micro_batch_size is None:
        return None
    size = whole_number(recipe.micro_batch_size)
    if size is None:
        raise RecipeError(
            "`micro_batch_size` must be a whole number of at least 1",
            repr(recipe.micro_batch_size),
            "Pass an int such as 32",
        )
    if recipe.batch_size % size:
        raise RecipeError(
            "`micro_batch_size` must divide `batch_size`",
            f"{size} for a batch of {recipe.batch_size}",
            "Pass a divisor, or None for the whole batch at once",
        )
    return size


def check_beta_2(recipe: Any) -> None:
    """Refuse a second beta for an optimizer that has none."""
    if recipe.beta_2 != type(recipe).beta_2 and recipe.optimizer not in ADAMS:
        raise RecipeError(
            f"`beta_2` must be left out with an optimizer other than {', '.join(ADAMS)}",
            f"beta_2={recipe.beta_2!r} with {recipe.optimizer}",
            f"Leave it out, or pass beta_2={type(recipe).beta_2}",
        )


def check_growth(recipe: Any) -> None:
    """Refuse a batch that grows where it cannot."""
    check_companions(RecipeError, [recipe.batch_schedule], [recipe.jit_compile], [recipe.training])
    whole = recipe.micro_batch_size in (None, recipe.batch_size)
    if measures_noise(recipe.batch_schedule) and whole:
        raise RecipeError(
            "A batch that grows by the noise scale must take two passes or more, between which it "
            "is measured",
            f"batch_size={recipe.batch_size}, micro_batch_size={recipe.micro_batch_size}",
            "Pass half of the batch as micro_batch_size",
        )


def _check_compiled(recipe: Any) -> None:
    """Refuse settings of an optimizer for the one that the model was compiled with."""
    given = [
        name
        for name in (*OF_OPTIMIZER, "batch_schedule")
        if getattr(recipe, name) != getattr(type(recipe), name)
    ]
    if recipe.learning_rate is None and not given:
        return
    received = [f"learning_rate={recipe.learning_rate!r}"]
    received += [f"{name}={getattr(recipe, name)!r}" for name in given]
    raise RecipeError(
        'With optimizer="compiled" the learning rate must be the model\'s own, '
        "and so all settings of its optimizer",
        ", ".join(received),
        "Pass learning_rate=None and leave the others out, or name an optimizer",
    )


def fields_of_row(
    row: Mapping[str, Any], known: set[str], required: Collection[str]
) -> dict[str, Any]:
    """Return the fields of a recipe from a row of results.

    In a row, pandas may have turned whole numbers into floats and `None` into NaN.
    """
    missing = set(required) - set(row)
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


# The fields of a recipe in the first projects, whose record keys are hashes over all of them. A
# later field is written only where it differs from its default, so that old keys stay valid.
FIRST_FIELDS = frozenset(
    ("batch_size", "optimizer", "learning_rate", "warmup_updates", "policy")
    + ("augmentation", "micro_batch_size", "jit_compile", "recompute")
)


@made_in_one_frame
@dataclass(frozen=True)
class Recipe:
    """One complete way to train a model.

    Use it to tell `kbatch.train` how to train, and to read the trials of a search. A recipe is a
    plain value: it compares with `==`, prints in words and can be written as JSON.

    Args:
        batch_size: Integer, examples per weight update. Defaults to `32`.
        optimizer: `"sgd"`, `"adam"`, `"adamw"`, `"lars"` (You et al. 2017), `"lamb"` (You et al.
            2020), or `"compiled"`, which keeps the optimizer that the model was compiled with.
            Defaults to `"adam"`.
        learning_rate: Float, learning rate of the optimizer after warm-up. `None` if, and only if,
            the optimizer is `"compiled"`. Defaults to `1e-3`.
        warmup_updates: Integer, number of weight updates over which the learning rate rises
            linearly. Defaults to `0`.
        policy: `"float32"`, Keras' `"mixed_float16"`, `"mixed_bfloat16"` or `"float16"` (weights
            too; not with the Adam family), or `"float8"` (dense layers, the others in
            mixed_bfloat16; only plain training). Defaults to `"float32"`.
        augmentation: Name of an augmentation pipeline (see `kbatch.register_augmentation`).
            Defaults to `"none"`.
        micro_batch_size: Integer, examples per forward and backward pass; must divide `batch_size`.
            The gradients of several passes are accumulated until they make up a batch. `None` (the
            default) takes the whole batch in one pass.
        jit_compile: Boolean, whether XLA compiles the train step. Defaults to `False`.
        recompute: Which activations are recomputed in the backward pass instead of kept, to save
            memory (see `kbatch.recompute.plan`): `"none"`, `"minimal"`, `"sqrt"`, `"stages"`,
            `"blocks"`, `"segments:4"`, or `"budget:0.5"`, which keeps at most half of the bytes at
            the least extra time. Defaults to `"none"`.
        label_smoothing: Float from 0 to below 1, the share of each label that is spread evenly over
            all classes (Szegedy et al. 2016). Needs a cross-entropy loss. Defaults to `0.0`.
        weight_decay: Float, decoupled weight decay: each update takes `weight_decay` times the
            learning rate off every weight (Loshchilov & Hutter 2019). LARS takes it into its ratio
            instead, as its paper does, for kernels only. Defaults to `0.0`.
        momentum: Float, momentum of SGD and LARS, `beta_1` of the others. Defaults to `0.9`.
        dropout_scale: Float, factor on the rates of the model's `Dropout` layers during the
            training; a scaled rate is at most 0.5. Defaults to `1.0`.
        schedule: `"constant"`, `"cosine"` or `"steps"`: how the learning rate falls over the
            training after warm-up (see `kbatch.rules.scaling`). Defaults to `"constant"`.
        training: What an update does with a batch: `"plain"`; `"sam:0.05"`, sharpness-aware
            minimisation with this radius (Foret et al. 2021); or `"proximal:0.1"`, the proximal
            mini-batch method with this penalty (Li et al. 2014), with three inner steps, or
            `"proximal:0.1:5"` with five. Defaults to `"plain"`.
        clip_norm: Float, the largest norm of the whole gradient of an update. `None` (the default)
            for no limit.
        ema: Float between 0 and 1, momentum of the moving average of the weights over updates.
            Validation measures the averaged weights, and these are kept. `None` (the default) for
            no average.
        batch_schedule: How the batch grows to `batch_size` within the training: `"constant"`,
            `"linear:8"`, `"exponential:8"`, `"steps:8"`, `"plateau:8"` or `"noise:8"`, where it
            begins at an eighth; the rate of a smaller batch follows. Defaults to `"constant"`.
        normalization: `"batch"` leaves the model's `BatchNormalization` layers; `"group"` replaces
            them by `GroupNormalization`, which does not depend on the micro-batch (Wu & He 2018).
            Defaults to `"batch"`.
        accumulation: How the passes of a batch make one gradient: `"mean"` averages the gradients
            of the passes, which is exact for a loss that is a mean over examples; `"exact"` takes
            the loss once, of the outputs of all passes, which is exact for any loss of the outputs
            and costs one more forward pass (Gao et al. 2021). Trainings measure which is needed and
            take `"exact"` by themselves. Defaults to `"mean"`.
        beta_2: Float, momentum of the mean of squared gradients of Adam, AdamW and LAMB. Brown
            et al. 2020 take 0.95 for batches of thousands of texts. Defaults to `0.999`.

    Raises:
        RecipeError: If a value is not one of the above.

    Example:
    >>> recipe = Recipe(batch_size=256, optimizer="sgd", learning_rate=0.08, micro_batch_size=64)
    >>> recipe.accumulation_steps
    4
    >>> print(recipe)
    batch 256 (4 x 64), sgd 0.08, momentum 0.9
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
    weight_decay: float = 0.0
    momentum: float = 0.9
    dropout_scale: float = 1.0
    schedule: str = "constant"
    training: str = "plain"
    clip_norm: float | None = None
    ema: float | None = None
    batch_schedule: str = "constant"
    normalization: str = "batch"
    accumulation: str = MEAN
    beta_2: float = 0.999

    def __post_init__(self) -> None:
        for name, check in CHECKS.items():
            object.__setattr__(self, name, check(getattr(self, name)))
        object.__setattr__(self, "learning_rate", checked_learning_rate(self))
        object.__setattr__(self, "micro_batch_size", checked_micro_batch_size(self))
        check_beta_2(self)
        check_growth(self)
        check_policies(RecipeError, (self.policy,), (self.optimizer,), (self.training,))

    @property
    def growth(self) -> BatchGrowth:
        """`BatchGrowth` that `batch_schedule` names."""
        return BatchGrowth.parse(self.batch_schedule) or BatchGrowth()

    @property
    def method(self) -> TrainingMethod:
        """`TrainingMethod` that `training` names."""
        return TrainingMethod.parse(self.training) or TrainingMethod()

    @property
    def examples_per_pass(self) -> int:
        """Integer, examples per forward and backward pass: the micro-batch, or the whole batch."""
        return self.micro_batch_size or self.batch_size

    @property
    def accumulation_steps(self) -> int:
        """Integer, forward and backward passes per weight update."""
        return self.batch_size // self.examples_per_pass

    @property
    def steps_per_update(self) -> int:
        """Integer, train steps of Keras per weight update: passes, but for SAM and proximal one.

        With exact accumulation it is one too.
        """
        by_keras = self.training == "plain" and self.accumulation == MEAN
        return self.accumulation_steps if by_keras else 1

    @property
    def is_exact(self) -> bool:
        """Boolean, whether several passes take the loss once, of the outputs of all of them."""
        return self.accumulation == EXACT and self.accumulation_steps > 1

    @property
    def examples_per_step(self) -> int:
        """Integer, examples that one train step of Keras takes.

        SAM and the proximal method go through a batch several times, so they take all of it, as
        exact accumulation does.
        """
        return self.batch_size // self.steps_per_update

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

    def to_code(self) -> str:
        """Return plain Keras code that trains this recipe without kbatch.

        Use it to take a recipe home: the code imports keras, numpy and tensorflow only. It defines
        `train(build_model, x, y, validation_data, epochs)`, and has places marked with TODO for
        your model and data. A compiled model keeps its own loss and metrics. What plain Keras
        cannot do is a comment that says so, or stops the script with a sentence.
        `kbatch export` writes the code of a whole search, with its model and data where it can.

        Example:
        >>> code = Recipe(batch_size=64, optimizer="sgd", learning_rate=0.02).to_code()
        >>> "keras.optimizers.SGD(learning_rate=0.02, momentum=0.9)" in code
        True
        """
        return script(self, Places())

    @classmethod
    @in_one_frame
    def from_json(cls, text: str) -> Recipe:
        """Read the recipe that `to_json` wrote; missing fields take their defaults.

        Raises:
            RecipeError: If the text is not JSON, or does not hold the fields of a recipe.
        """
        return cls.from_dict(plain_text.parse_json(text, _no_recipe))

    @classmethod
    @in_one_frame
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
            return cls(**fields_of_row(given, known, FIRST_FIELDS))
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
        rate = "" if self.learning_rate is None else f" {self.learning_rate:.3g}"
        words.append(f"{self.optimizer}{rate}")
        # Keras' own SGD has none: who copies the words must see it.
        has_momentum = self.optimizer in ("sgd", "lars") or self.momentum != Recipe.momentum
        optional = {
            f"momentum {self.momentum:.3g}": has_momentum,
            f"warm-up {self.warmup_updates}": self.warmup_updates > 0,
            self.policy: self.policy != "float32",
            self.augmentation: self.augmentation != "none",
            "jit": self.jit_compile,
            f"recompute {self.recompute}": self.recompute != "none",
            f"label smoothing {self.label_smoothing:g}": self.label_smoothing > 0,
            f"weight decay {self.weight_decay:.3g}": self.weight_decay > 0,
            f"beta_2 {self.beta_2:.4g}": self.beta_2 != Recipe.beta_2,
            f"dropout x {self.dropout_scale:.3g}": self.dropout_scale != 1,
            self.schedule: self.schedule != "constant",
            self.training: self.training != "plain",
            f"clip {self.clip_norm}": self.clip_norm is not None,
            f"ema {self.ema}": self.ema is not None,
            f"batch {self.batch_schedule}": self.batch_schedule != CONSTANT,
            f"{self.normalization} normalization": self.normalization != "batch",
            "exact accumulation": self.is_exact,
        }
        return ", ".join([*words, *(word for word, differs in optional.items() if differs)])


def check_recipe(given: Any) -> None:
    """Refuse what is no recipe where one is expected."""
    if not isinstance(given, Recipe):
        raise RecipeError(
            "`recipe` must be a Recipe", type(given).__name__, "Pass kbatch.Recipe(…)"
        )


def _no_recipe(received: str) -> RecipeError:
    return RecipeError("A recipe must be what Recipe.to_json wrote", received, "Write it again")
