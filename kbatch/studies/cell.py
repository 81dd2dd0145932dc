"""Cell: one training of a study, the setting of all, and what their tables say of them."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import pandas as pd

from kbatch import outcome
from kbatch.data.examples import Examples
from kbatch.errors import SearchError
from kbatch.outcome import SCORED
from kbatch.recipe import Recipe
from kbatch.records.at_most_once import Job
from kbatch.records.store import Record
from kbatch.results.interval import FEWEST_SEEDS, interval
from kbatch.text_table import TextTable

PURPOSE = "study"
STEPS = 4  # of accumulation, where a technique accumulates
GIVEN, CROPPED = "as given", "with crops"


@dataclass(frozen=True)
class Length:
    """How long a training lasts: a number of epochs, updates or training seconds."""

    amount: float
    unit: Literal["epochs", "updates", "seconds"]

    def __str__(self) -> str:
        return f"{self.amount:g} {self.unit}"


@dataclass(frozen=True)
class Cell:
    """One training of a study."""

    group: str  # the row or curve of the table that it belongs to
    recipe: Recipe
    length: Length
    seed: int = 0  # of weights, order of the data and dropout
    model: str = "cnn"
    data: str = GIVEN  # or with a random crop of each picture added
    memory_limit: int | None = None  # bytes; a cell with a limit trains in a process of its own
    environment: Mapping[str, str] = field(default_factory=dict)  # of that process

    @property
    def isolated(self) -> bool:
        """Boolean, whether it trains in a process of its own."""
        return bool(self.environment) or self.memory_limit is not None

    def job(self) -> Job:
        """Return the training to make; equal trainings of two tables have equal keys."""
        values: dict[str, Any] = {
            "model": self.model,
            "data": self.data,
            self.length.unit: self.length.amount,
        }
        if self.isolated:
            values |= {"memory_limit": self.memory_limit, **self.environment}
        return Job(PURPOSE, 0, self.seed, self.recipe, values)

    def lasting(self, length: Length) -> Cell:
        """Return the same cell of another length."""
        return dataclasses.replace(self, length=length)

    def __str__(self) -> str:
        return f"{self.group}: {self.recipe}, {self.length}, seed {self.seed}"


Choice = TypeVar("Choice")
FULL, QUICK = 10**9, 120  # examples of each class to train on
LEAST_IMAGE_SIZE = 8  # pixels, of the case study's network
BOUNDS: dict[str, tuple[int, int]] = {
    "image_size": (LEAST_IMAGE_SIZE, 1024),
    "seeds": (1, 100),
    "epochs": (1, 10_000),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all cells of a study share, besides the data."""

    image_size: int  # height and width in pixels
    epochs: int
    seeds: int  # of every cell
    memory_limit: int | None = None  # bytes that the device may use; `None` for all that it has
    # Fewer and smaller pictures, fewer sizes and epochs, so that the study takes minutes. It shows
    # that the study works here; its numbers claim nothing.
    quick: bool = False

    @property
    def per_class(self) -> int:
        """The most examples of each class to train on."""
        return self.either(FULL, QUICK)

    def either(self, published: Choice, quick: Choice) -> Choice:
        """Return what the published table takes, or what a quick study takes instead."""
        return quick if self.quick else published


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user asks of a study; `None` for what the study's own setting says."""

    image_size: int | None = None
    epochs: int | None = None
    seeds: int | None = None
    memory_limit: int | None = None

    def applied(
        self,
        setting: Setting,
        takes: Sequence[str],
        least_image_size: int = LEAST_IMAGE_SIZE,
    ) -> Setting:
        """Return the setting with these wishes."""
        wished = {name: value for name, value in vars(self).items() if value is not None}
        bounds = {**BOUNDS, "image_size": (least_image_size, BOUNDS["image_size"][1])}
        for name, (least, most) in bounds.items():
            if not least <= wished.get(name, least) <= most:
                raise SearchError(
                    f"{_option(name)} must be at least {least:,} and at most {most:,}",
                    wished[name],
                    "Pass a number between these",
                )
        for name in wished.keys() - set(takes):
            raise SearchError(
                f"This study must be given only {', '.join(map(_option, takes))}",
                _option(name),
                "Leave it out: it would change nothing here",
            )
        return dataclasses.replace(setting, **wished)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


NOTHING = "–"  # of a cell that has no value


@dataclass(frozen=True)
class StudyTable:
    """One table of a study."""

    title: str  # what it shows, with its units
    table: TextTable
    note: str = ""  # a sentence below it

    def markdown(self) -> str:
        """Return the table as Markdown below its title."""
        note = f"\n{self.note}\n" if self.note else ""
        return f"### {self.title}\n\n{self.table.markdown()}\n{note}"


def mean_text(values: Iterable[float], digits: int = 3, factor: float = 1.0) -> str:
    """Return the mean of some values with its standard error, if there are several."""
    known = pd.Series([float(value) for value in values if not pd.isna(value)]) * factor
    if known.empty:
        return NOTHING
    if len(known) == 1:
        return f"{known[0]:,.{digits}f}"
    return f"{known.mean():,.{digits}f} ± {known.std() / math.sqrt(len(known)):,.{digits}f}"


def by_batch(
    frame: pd.DataFrame, column: str, heading: str = "", digits: int = 3, factor: float = 1.0
) -> TextTable:
    """Return a table with a line for each group and a column for each batch size."""
    sizes = sorted(frame.batch_size.unique())
    lines = []
    for group in frame.group.unique():
        own = frame[frame.group == group]
        texts = [mean_text(own[own.batch_size == size][column], digits, factor) for size in sizes]
        lines.append([group, *texts])
    return TextTable([heading, *map(str, sizes)], lines)


CHANCE = 0.5  # of two classes
Answer: TypeAlias = Literal["higher", "lower", "within noise"]


@dataclass(frozen=True)
class Values:
    """What one batch size gave: a value for each seed."""

    size: int
    values: tuple[float, ...]  # one for each seed; NaN for a cell without a value
    error: float = 0.0  # standard error of measuring one value, such as on 400 pictures

    @property
    def known(self) -> bool:
        """Boolean, whether every seed has a value."""
        return bool(self.values) and all(map(math.isfinite, self.values))

    @property
    def mean(self) -> float:
        """Float, the mean over the seeds; NaN if a seed has no value."""
        return statistics.fmean(self.values)

    def times(self, factor: float) -> Values:
        """Return the values times a factor, which is exact."""
        values = tuple(factor * value for value in self.values)
        return Values(self.size, values, factor * self.error)

    def __str__(self) -> str:
        return f"{mean_text(self.values) if self.known else NOTHING} at batch {self.size}"


@dataclass(frozen=True)
class CellComparison:
    """The mean of one size less that of another."""

    difference: float
    half_width: float  # of the 95 % interval around it; infinite with too few seeds

    @property
    def low(self) -> float:
        """Float, the lower end of the interval."""
        return self.difference - self.half_width

    @property
    def high(self) -> float:
        """Float, the upper end of the interval."""
        return self.difference + self.half_width

    @property
    def answer(self) -> Answer:
        """Whether the first is `"higher"`, `"lower"`, or not told from the second by these seeds.

        >>> [CellComparison(apart, 0.1).answer for apart in (0.2, -0.2, 0.1)]
        ['higher', 'lower', 'within noise']
        """
        if not abs(self.difference) > self.half_width:
            return "within noise"
        return "higher" if self.difference > 0 else "lower"

    def __str__(self) -> str:
        if not math.isfinite(self.half_width):
            return f"fewer than {FEWEST_SEEDS} seeds decide nothing"
        return (
            f"difference {self.difference:+.3f}, 95 % interval {self.low:+.3f} to {self.high:+.3f}"
        )


def compared(first: Values, second: Values, pairs: int = 1) -> CellComparison:
    """Return the difference of two sizes, with the interval of `kbatch.results.claim`."""
    difference = first.mean - second.mean
    if min(len(first.values), len(second.values)) < FEWEST_SEEDS:
        return CellComparison(difference, math.inf)
    if not any((first.error, second.error, _spread(first), _spread(second))):
        return CellComparison(difference, 0.0)  # without any spread there is no t
    width = interval(first.values, second.values, first.error, second.error, pairs)
    return CellComparison(difference, float(width))


def above_chance(values: Values, sizes: int) -> bool:
    """Return whether an accuracy is above that of guessing by more than noise."""
    guessed = Values(values.size, (CHANCE,) * len(values.values))
    return compared(values, guessed, sizes).answer == "higher"


def best(sizes: Sequence[Values]) -> Values:
    """Return the values of the size with the highest mean; of equal ones the first."""
    return max(sizes, key=lambda values: values.mean)


def bests(sizes: Sequence[Values]) -> str:
    """Return the size with the highest mean in words, with those that equal it.

    >>> bests([Values(16, (0.5,)), Values(32, (0.4,)), Values(64, (0.5,))])
    '16 = 64'
    """
    top = best(sizes).mean
    return " = ".join(str(values.size) for values in sizes if values.mean == top)


def _spread(values: Values) -> float:
    return max(values.values) - min(values.values)


# The part of the pictures that an accuracy was measured on.
PARTS = {"val_accuracy": "validation", "train_accuracy": "train", "test_accuracy": "test"}


@dataclass(frozen=True)
class Sample:
    """The pictures that a study used."""

    source: str  # where they are from
    classes: int
    train: int  # of all classes, as the next two
    validation: int
    test: int

    @classmethod
    def of(cls, pictures: Examples) -> Sample:
        """Return the numbers of pictures; without test pictures those to validate are tested on."""
        tested = pictures.test or pictures.validation
        return cls(
            pictures.name,
            max(len(pictures.classes), 1),
            len(pictures.train[1]),
            len(pictures.validation[1]),
            len(tested[1]),
        )

    def __str__(self) -> str:
        each = [number // self.classes for number in (self.train, self.validation, self.test)]
        return "of each class {:,} to train, {:,} to validate, {:,} to test".format(*each)


@dataclass(frozen=True)
class CellResults:
    """The results of a study."""

    frame: pd.DataFrame  # as `frame_of` makes it
    setting: Setting
    sample: Sample

    def at_equal(self, unit: str) -> pd.DataFrame:
        """Return the rows of the cells at equal `"epochs"`, `"updates"` or `"seconds"`."""
        return self.frame[self.frame.unit == unit]

    def sizes(self, rows: pd.DataFrame, column: str) -> list[Values]:
        """Return the values of a column by batch size, the smallest size first."""
        found = []
        for size, own in rows.groupby("batch_size"):
            values = tuple(float(value) for value in own[column].astype(float))
            found.append(Values(int(str(size)), values, self._error(values, column)))
        return found

    def gaps(self, rows: pd.DataFrame) -> list[Values]:
        """Return accuracy on training data less accuracy on test data, by batch size."""
        found = []
        pairs = zip(
            self.sizes(rows, "train_accuracy"), self.sizes(rows, "test_accuracy"), strict=True
        )
        for train, test in pairs:
            values = zip(train.values, test.values, strict=True)
            gaps = tuple(first - second for first, second in values)
            found.append(Values(train.size, gaps, math.hypot(train.error, test.error)))
        return found

    def _error(self, values: tuple[float, ...], column: str) -> float:
        """The standard error of one accuracy, which is a share of so many pictures."""
        if column not in PARTS or not all(map(math.isfinite, values)):
            return 0.0
        pictures = getattr(self.sample, PARTS[column])
        return outcome.standard_error(sum(values) / len(values), pictures)


TRAIN = "train_"  # before the metrics on training data in a record's `test`


def frame_of(pairs: Sequence[tuple[Cell, Record]]) -> pd.DataFrame:
    """Return a row for each cell: its recipe, its length, and what was measured.

    The columns are `group`, `batch_size`, `micro_batch_size`, `optimizer`, `unit`, `length`,
    `seed`, `data`, `model`, `memory_limit` and `environment` (both of a process of its own),
    `ended`, `val_accuracy` (held), `train_accuracy`, `test_accuracy`, `last_accuracy` (the last one
    measured on validation data), `best_accuracy`, `best_share` (the share of the training after
    which the best accuracy was measured), `train_seconds`, `step_seconds`, `examples_per_second`,
    `peak_bytes`, `gpu_percent`, `updates` and `recipe`.
    """
    return pd.DataFrame([_row(cell, record) for cell, record in pairs])


def _row(cell: Cell, record: Record) -> dict[str, Any]:
    outcome, recipe = record.outcome, record.recipe
    scored = outcome.ended in SCORED
    best_share, best = _best(outcome.curve)
    return {
        "group": cell.group,
        "batch_size": recipe.batch_size,
        "micro_batch_size": recipe.examples_per_pass,
        "optimizer": recipe.optimizer,
        "unit": cell.length.unit,
        "length": cell.length.amount,
        "seed": cell.seed,
        "data": cell.data,
        "model": cell.model,
        "memory_limit": cell.memory_limit,
        "environment": " ".join(f"{name}={value}" for name, value in cell.environment.items()),
        "ended": outcome.ended,
        "val_accuracy": outcome.value if scored else None,
        "train_accuracy": record.test.get(f"{TRAIN}accuracy"),
        "test_accuracy": record.test.get("accuracy"),
        "last_accuracy": outcome.curve[-1][1] if scored and outcome.curve else None,
        "best_accuracy": best if scored else None,
        "best_share": best_share if scored else None,
        "train_seconds": outcome.train_seconds if scored else None,
        "step_seconds": outcome.median_update_seconds,
        "examples_per_second": outcome.examples_per_second if scored else None,
        "peak_bytes": outcome.peak_bytes,
        "gpu_percent": outcome.utilisation.get("mean_gpu_percent"),
        "updates": outcome.updates,
        "recipe": str(recipe),
    }


def _best(curve: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """The share of the training at the best measurement, and its value."""
    if not curve:
        return None, None
    seconds, value = max(curve, key=lambda point: point[1])
    return seconds / curve[-1][0] if curve[-1][0] else None, value
