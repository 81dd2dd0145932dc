"""Cell: one training of a study."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kbatch.recipe import Recipe
from kbatch.records.project import Job

PURPOSE = "study"
STEPS = 4  # of accumulation, where a technique accumulates
GIVEN, CROPPED = "as given", "with crops"


@dataclass(frozen=True)
class Length:
    """How long a training lasts.

    Attributes:
        amount: Number of epochs, updates or training seconds.
        unit: `"epochs"`, `"updates"` or `"seconds"`.
    """

    amount: float
    unit: Literal["epochs", "updates", "seconds"]

    def __str__(self) -> str:
        return f"{self.amount:g} {self.unit}"


@dataclass(frozen=True)
class Cell:
    """One training of a study.

    Attributes:
        group: String, the row or curve of the table that it belongs to.
        recipe: `Recipe` to follow.
        length: `Length` of the training.
        seed: Integer, seed of weights, order of the data and dropout.
        model: String, name of the model.
        data: `"as given"`, or `"with crops"`: a random crop of each picture added.
        memory_limit: Integer, bytes that the device may use; `None` for all. Such a cell trains in
            a process of its own.
        environment: Mapping, environment variables of that process.
    """

    group: str
    recipe: Recipe
    length: Length
    seed: int = 0
    model: str = "cnn"
    data: str = GIVEN
    memory_limit: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

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
