"""The agreement of a recipe's fields with one another."""

from __future__ import annotations

from typing import Any

from kbatch.batch_growth import check_companions, measures_noise
from kbatch.errors import RecipeError
from kbatch.recipe_fields import COMPILED, OF_OPTIMIZER, is_number, whole_number


def learning_rate(recipe: Any) -> float | None:
    """Return the learning rate as a recipe holds it.

    Raises:
        RecipeError: If it is no rate, or settings are given that the model's own optimizer has.
    """
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


def micro_batch_size(recipe: Any) -> int | None:
    """Return the micro-batch size as a recipe holds it.

    Raises:
        RecipeError: If it does not divide the batch.
    """
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


def check_growth(recipe: Any) -> None:
    """Refuse a batch that grows where it cannot.

    Raises:
        RecipeError: If XLA compiles the model, or the noise scale cannot be measured.
    """
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
