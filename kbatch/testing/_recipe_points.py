"""Recipe points: the recipes of a table as hyperparameters, and the nearest to drawn values."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras_tuner
import numpy as np

from kbatch.recipe import Recipe
from kbatch.space import Space

# Fields that follow from the others, the first by a range for each optimizer.
RATE = "learning_rate"
FOLLOWING = frozenset((RATE, "warmup_updates", "micro_batch_size"))
ABSENT = "none"  # KerasTuner holds no None
DIFFERENT = 1.0  # the distance of two values without an order, in ranges of an ordered axis


@dataclasses.dataclass(frozen=True)
class Dimension:
    """A setting that differs between the recipes of a table.

    Attributes:
        name: String, name of the hyperparameter.
        values: Tuple of its values in the table, in their order.
        optimizer: String, the optimizer whose learning rate this is; empty for any other setting.
    """

    name: str
    values: tuple[Any, ...]
    optimizer: str = ""

    @property
    def ordered(self) -> bool:
        """Boolean, whether the values are numbers above 0, which differ by their ratio."""
        return all(_is_positive(value) for value in self.values)

    def place(self, value: Any) -> float:
        """Return where a value is in the range of the table's, on a log scale, from 0 to 1."""
        lowest, highest = math.log(self.values[0]), math.log(self.values[-1])
        return (math.log(value) - lowest) / (highest - lowest)


class RecipePoints:
    """The recipes of a table as points in a space of hyperparameters.

    Learning rates are those at batch 32, one dimension for each optimizer, as `Space` draws them.

    Args:
        recipes: Sequence of `Recipe`, all different.
    """

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self.recipes = tuple(recipes)
        space = Space()
        self._rates = [space.rate_at_32(recipe) for recipe in self.recipes]
        self.dimensions = tuple(self._fields()) + tuple(self._rate_ranges())
        self._values = [self.values(recipe) for recipe in self.recipes]

    def declare(self, hp: keras_tuner.HyperParameters) -> None:
        """Declare the dimensions as hyperparameters.

        Args:
            hp: `keras_tuner.HyperParameters` to declare them in.
        """
        several = any(each.name == "optimizer" for each in self.dimensions)
        for each in self.dimensions:
            scope: Any = contextlib.nullcontext()
            if each.optimizer and several:
                scope = hp.conditional_scope("optimizer", [each.optimizer])
            with scope:
                if each.optimizer:
                    lowest, highest = each.values[0], each.values[-1]
                    middle = math.sqrt(lowest * highest)  # the default of `Space` too
                    hp.Float(each.name, lowest, highest, sampling="log", default=middle)
                else:
                    hp.Choice(each.name, list(each.values))

    def values(self, recipe: Recipe) -> dict[str, Any]:
        """Return the values of the hyperparameters of a recipe of the table.

        Args:
            recipe: `Recipe` of the table.
        """
        rate = self._rates[self.recipes.index(recipe)]
        values = {}
        for each in self.dimensions:
            if not each.optimizer:
                values[each.name] = _held(getattr(recipe, each.name))
            elif each.optimizer == recipe.optimizer:
                values[each.name] = rate
        return values

    def nearest(self, values: dict[str, Any], among: Iterable[int]) -> int:
        """Return the number of the recipe nearest to drawn values.

        Args:
            values: Dict, drawn values of the hyperparameters.
            among: Iterable of integers, the numbers of the recipes to choose from.
        """
        return min(among, key=lambda number: (self._distance(values, number), number))

    def _distance(self, drawn: dict[str, Any], number: int) -> float:
        """The square of the distance of drawn values from those of a recipe."""
        own, total = self._values[number], 0.0
        for each in self.dimensions:
            if each.name not in own:  # of another optimizer
                continue
            if each.name not in drawn:
                total += DIFFERENT
            elif each.ordered:
                total += (each.place(drawn[each.name]) - each.place(own[each.name])) ** 2
            else:
                total += DIFFERENT * (drawn[each.name] != own[each.name])
        return total

    def _fields(self) -> Iterable[Dimension]:
        for field in dataclasses.fields(Recipe):
            values = {_held(getattr(recipe, field.name)) for recipe in self.recipes}
            if len(values) > 1 and field.name not in FOLLOWING:
                yield Dimension(field.name, tuple(sorted(values, key=_rank)))

    def _rate_ranges(self) -> Iterable[Dimension]:
        optimizers = sorted({recipe.optimizer for recipe in self.recipes})
        for optimizer in optimizers:
            pairs = zip(self.recipes, self._rates, strict=True)
            rates = {rate for recipe, rate in pairs if recipe.optimizer == optimizer and rate}
            if len(rates) > 1:
                name = f"{RATE}_{optimizer}"
                yield Dimension(name, tuple(np.sort(list(rates)).tolist()), optimizer)


def _held(value: Any) -> Any:
    """A value as KerasTuner can hold it."""
    return ABSENT if value is None else value


def _rank(value: Any) -> tuple[int, Any]:
    """The place of a value among numbers, which come first, and words."""
    return (1, value) if isinstance(value, str) else (0, value)


def _is_positive(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and value > 0
