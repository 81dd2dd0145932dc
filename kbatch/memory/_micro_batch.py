"""Micro-batch: a recipe made to fit a limit by gradient accumulation."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from kbatch.errors import SearchError
from kbatch.memory._max_batch import Table
from kbatch.recipe import Recipe
from kbatch.recipe_words import whole_number
from kbatch.space import Combination, Space, combinations

# Passes per update, chosen by hand: more save no memory that counts, and cost time.
MOST_STEPS = 16

MaxBatches: TypeAlias = int | Table | None


def check(limits: Any, space: Space) -> MaxBatches:
    """Return limits: `None`, a batch size, or a table with a row for each recipe of a space."""
    if limits is None:
        return None
    if isinstance(limits, Table):
        missing = [
            combination for combination in combinations(space) if limits.row(combination) is None
        ]
        if missing:
            fields = ", ".join(Combination._fields)
            raise SearchError(
                f"`max_batch` must have a row for every {fields} of the space",
                f"none for {missing[0]}",
                "Make the table of the same space: kbatch.max_batches(build, x, y, space)",
            )
        return limits
    number = whole_number(limits)
    if number is None:
        raise SearchError(
            "`max_batch` must be None, a batch size, or a table of kbatch.max_batches",
            limits,
            "Pass one of these",
        )
    return number


def of_table(space: Space, limits: Any) -> Space:
    """Return the space, without XLA where nobody asked for it and a table has no row for it.

    The table was then made of a model that XLA cannot compile.
    """
    if space.jit_compile is not None or not isinstance(limits, Table):
        return space
    if any(row.jit_compile for row in limits):
        return space
    return dataclasses.replace(space, jit_compile=False)


def check_steps(most_steps: Any) -> int:
    """Return a number of passes per update."""
    number = whole_number(most_steps)
    if number is None:
        raise SearchError(
            "`max_accumulation_steps` must be a whole number of at least 1",
            most_steps,
            "Pass 16, say",
        )
    return number


def fitted(
    recipe: Recipe, limits: MaxBatches, most_steps: int = MOST_STEPS, devices: int = 1
) -> Recipe | None:
    """The recipe with a micro-batch that fits; `None` if `most_steps` passes are too few.

    Example:
    >>> fitted(Recipe(batch_size=256), 96).micro_batch_size
    64
    >>> fitted(Recipe(batch_size=256), 96, devices=2).micro_batch_size
    128
    """
    whole, accumulated = (devices * size for size in sizes(recipe, limits))
    if recipe.accumulation_steps == 1 and recipe.batch_size <= whole:
        return recipe
    most = max(most_steps, recipe.accumulation_steps)
    for steps in range(max(2, recipe.accumulation_steps), most + 1):
        size, rest = divmod(recipe.batch_size, steps)
        if rest == 0 and size % devices == 0 and size <= accumulated:
            return dataclasses.replace(recipe, micro_batch_size=size)
    return None


def why_not(
    recipe: Recipe, limits: MaxBatches, most_steps: int = MOST_STEPS, devices: int = 1
) -> str:
    """The sentence about a recipe that does not fit."""
    whole, accumulated = (devices * size for size in sizes(recipe, limits))
    return (
        f"not trained: a batch of {recipe.batch_size} does not fit ({whole} do), "
        f"nor does any equal part of it in at most {most_steps} passes of {accumulated}"
    )


def sizes(recipe: Recipe, limits: MaxBatches) -> tuple[int, int]:
    """The largest batch without gradient accumulation and the largest micro-batch with it."""
    if limits is None:
        return recipe.batch_size, recipe.batch_size
    if isinstance(limits, int):
        return limits, limits
    row = limits.row(Combination.of(recipe))
    if row is None:
        raise SearchError(
            "`max_batch` must have a row for every recipe that is trained",
            f"none for {Combination.of(recipe)}",
            "Make the table of the same space: kbatch.max_batches(build, x, y, space)",
        )
    return row.batch_size, row.accumulated_batch_size


def facts(limits: MaxBatches) -> Any:
    """The limits in JSON's own types, for the facts that a project is compared by."""
    if not isinstance(limits, Table):
        return limits
    return {_named(row.combination): [row.batch_size, row.accumulated_batch_size] for row in limits}


def _named(combination: Combination) -> str:
    """A combination as the facts of a project name it."""
    return ", ".join(
        [
            combination.optimizer,
            combination.policy,
            f"jit {combination.jit_compile}",
            *combination.later_words(),
        ]
    )
