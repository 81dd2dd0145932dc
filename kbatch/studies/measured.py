"""Measured: what a study measured here, by which setting and of which pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from kbatch import outcome
from kbatch.data.examples import Examples
from kbatch.studies.comparison import Values
from kbatch.studies.setting import Setting

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
        frame: A row for each cell (see `kbatch.studies.results`).
        setting: `Setting` that ran.
        sample: `Sample` of the pictures.
    """

    frame: pd.DataFrame
    setting: Setting
    sample: Sample

    def sizes(self, rows: pd.DataFrame, column: str) -> list[Values]:
        """Return the values of a column by batch size, the smallest size first.

        Args:
            rows: Rows of `frame`, such as of one group at equal epochs.
            column: String, the column.
        """
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
