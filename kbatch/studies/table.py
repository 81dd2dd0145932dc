"""Table of the cells of a study that were measured, and their comparison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pandas as pd

from kbatch import outcome
from kbatch.data.examples import Examples
from kbatch.outcome import SCORED
from kbatch.records.store import Record
from kbatch.results.uncertainty import FEWEST_SEEDS, interval
from kbatch.studies.cell import Cell, Setting

NOTHING = "–"  # of a cell that has no value


@dataclass(frozen=True)
class StudyTable:
    """One table of a study.

    Attributes:
        title: String, what the table shows, with its units.
        frame: `pandas.DataFrame` of texts and numbers, one row per line of the table.
        note: String, a sentence below the table; may be empty.
    """

    title: str
    frame: pd.DataFrame
    note: str = ""

    def markdown(self) -> str:
        """Return the table as Markdown below its title."""
        table = str(self.frame.to_markdown(index=False, disable_numparse=True))
        note = f"\n{self.note}\n" if self.note else ""
        return f"### {self.title}\n\n{table}\n{note}"


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
) -> pd.DataFrame:
    """Return a table with a line for each group and a column for each batch size."""
    sizes = sorted(frame.batch_size.unique())
    lines = []
    for group in frame.group.unique():
        own = frame[frame.group == group]
        texts = [mean_text(own[own.batch_size == size][column], digits, factor) for size in sizes]
        lines.append([group, *texts])
    return pd.DataFrame(lines, columns=[heading, *map(str, sizes)])


CHANCE = 0.5  # of two classes
Answer: TypeAlias = Literal["higher", "lower", "within noise"]


@dataclass(frozen=True)
class Values:
    """What one batch size gave: a value for each seed.

    Attributes:
        size: Integer, the batch size.
        values: Tuple of floats, one for each seed; NaN for a cell without a value.
        error: Float, standard error of measuring one value, such as on 400 pictures.
    """

    size: int
    values: tuple[float, ...]
    error: float = 0.0

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
    """The mean of one size less that of another.

    Attributes:
        difference: Float.
        half_width: Float, half of the 95 % interval around it; infinite with too few seeds.
    """

    difference: float
    half_width: float

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
    """Return the difference of two sizes, with the interval of `kbatch.results.uncertainty`."""
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
    """The pictures that a study used.

    Attributes:
        source: String, where they are from.
        classes: Integer.
        train, validation, test: Integers, pictures of all classes.
    """

    source: str
    classes: int
    train: int
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
class Measured:
    """The results of a study.

    Attributes:
        frame: A row for each cell (see `kbatch.studies.table`).
        setting: `Setting` that ran.
        sample: `Sample` of the pictures.
    """

    frame: pd.DataFrame
    setting: Setting
    sample: Sample

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
