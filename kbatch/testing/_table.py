"""Table of recorded trainings, and the recipes in it as points."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras_tuner
import numpy as np

from kbatch import outcome, plain_text
from kbatch.errors import RecordError
from kbatch.outcome import SCORED
from kbatch.plain_text import FiniteAbove0, Whole
from kbatch.recipe import Recipe
from kbatch.records import files
from kbatch.records import project as records_project
from kbatch.results.interval import is_share
from kbatch.results.loading import load_records, load_validation_examples
from kbatch.space import Space


@dataclass(frozen=True)
class RecordedTraining:
    """One recorded training, a line of a table.

    Attributes:
        recipe: `Recipe` of the training.
        seed: Integer, seed of the weights and of the order of the data.
        horizon: Float, training seconds that it was given.
        chance: Float, the value of a model that learned nothing.
        curve: Tuple of `(train_seconds, value)`; empty if it failed.
        peak_bytes: Integer, the largest number of bytes in use; `None` if unknown.
        validation_examples: Integer, how many the value is a share of; `None` if it is no share,
            or unknown.
    """

    recipe: Recipe
    seed: Whole
    horizon: FiniteAbove0
    chance: float
    curve: tuple[tuple[float, float], ...]
    peak_bytes: Whole | None = None
    validation_examples: Whole | None = None

    def held(self, seconds: float) -> float:
        """Return the value held above chance within so many training seconds.

        Args:
            seconds: Float, training seconds. A training that is stopped then ends with a
                measurement, the next one of the curve.
        """
        return outcome.score(self._until(seconds), self.horizon, self.chance) * self.horizon

    def gain(self, seconds: float) -> float:
        """Return what it has gained above chance within so many seconds; see `kbatch.outcome.Goal`.

        Args:
            seconds: Float, training seconds; see `held`.
        """
        return outcome.gain(self._until(seconds), self.chance)

    def seconds(self, seconds: float) -> float:
        """Return the training seconds that it takes until it is stopped; 0 if it failed.

        Args:
            seconds: Float, training seconds after which it is stopped at the next measurement.
        """
        points = self._until(seconds)
        return points[-1][0] if points else 0.0

    def _until(self, seconds: float) -> tuple[tuple[float, float], ...]:
        before = sum(point[0] < seconds for point in self.curve)
        return self.curve[: before + 1]


def read(path: str | os.PathLike[str]) -> list[RecordedTraining]:
    """Read a table: one line of JSON for each training; `.gz` for a compressed one."""
    file = Path(path)
    do = "Pass a file that Replay.save wrote"
    try:
        data = file.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError) as error:
        raise RecordError("A table of trainings must be a readable file", f"{error}", do) from error
    trainings = []
    for number, row in enumerate(text.splitlines(), 1):
        if row.strip():
            trainings.append(_training(row, f"{file}, line {number}"))
    if not trainings:
        raise RecordError("A table must hold at least one training", f"{file}, without any", do)
    return trainings


def write(path: str | os.PathLike[str], trainings: Iterable[RecordedTraining]) -> None:
    """Write a table, compressed if the path ends with `.gz`; it appears whole or not at all."""
    rows = [
        json.dumps({**asdict(each), "recipe": each.recipe.to_dict()}, sort_keys=True)
        for each in trainings
    ]
    data = ("\n".join(rows) + "\n").encode()
    # the same table gives the same bytes
    files.write(Path(path), gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def _training(row: bytes, where: str) -> RecordedTraining:
    must = "A line of a table must hold recipe, seed, horizon, chance and curve"
    do = "Write it with Replay.save"

    def refuse(received: str) -> RecordError:
        return RecordError(must, f"{where}: {received}", do)

    fields = plain_text.parse_json(row, refuse)
    if not isinstance(fields, dict) or "recipe" not in fields:
        raise refuse("no recipe")
    fields["recipe"] = asdict(Recipe.from_dict(fields["recipe"]))
    return plain_text.read_json(RecordedTraining, fields, refuse)


def of_project(directory: str | os.PathLike[str]) -> list[RecordedTraining]:
    """Return the trainings of a search and its confirmations, each recipe and seed once."""
    project = Path(directory)
    goal = (records_project.load_facts(project / records_project.FOLDER) or {}).get("goal")
    if goal is None or goal["direction"] != "max" or goal.get("target") is not None:
        raise RecordError(
            "A table must come of a search for a higher value, without a target",
            f"{project}: {goal or 'no search'}",
            "Pass the folder of such a tuner's project",
        )
    examples = load_validation_examples(project) if is_share(goal["metric"]) else None
    found: dict[tuple[Recipe, int], RecordedTraining] = {}
    for record in load_records(project):
        outcome = record.outcome
        curve = tuple(outcome.curve) if outcome.ended in SCORED else ()
        training = RecordedTraining(
            record.recipe,
            record.seed,
            goal["seconds"],
            goal["chance"],
            curve,
            outcome.peak_bytes,
            examples,
        )
        found.setdefault((record.recipe, record.seed), training)
    return list(found.values())


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
    """

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self.recipes = tuple(recipes)
        space = Space()
        self._rates = [space.rate_at_32(recipe) for recipe in self.recipes]
        self.dimensions = tuple(self._fields()) + tuple(self._rate_ranges())
        self._values = [self.values(recipe) for recipe in self.recipes]

    def declare(self, hp: keras_tuner.HyperParameters) -> None:
        """Declare the dimensions as hyperparameters."""
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
        """Return the values of the hyperparameters of a recipe of the table."""
        rate = self._rates[self.recipes.index(recipe)]
        values = {}
        for each in self.dimensions:
            if not each.optimizer:
                values[each.name] = _held(getattr(recipe, each.name))
            elif each.optimizer == recipe.optimizer:
                values[each.name] = rate
        return values

    def nearest(self, values: dict[str, Any], among: Iterable[int]) -> int:
        """Return the number of the recipe nearest to drawn values."""
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
