"""Cell: one training of a study, and the setting that all cells share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kbatch.errors import SearchError
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


FULL, QUICK = 10**9, 120  # examples of each class to train on
LEAST_IMAGE_SIZE = 8  # pixels, of the case study's network
BOUNDS: dict[str, tuple[int, int]] = {
    "image_size": (LEAST_IMAGE_SIZE, 1024),
    "seeds": (1, 100),
    "epochs": (1, 10_000),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all cells of a study share, besides the data.

    Attributes:
        image_size: Integer, height and width in pixels.
        epochs: Integer, passes over the data.
        seeds: Integer, seeds of every cell.
        memory_limit: Integer, bytes that the device may use; `None` for all that it has.
        quick: Boolean, whether the study is cut to a few minutes: fewer and smaller pictures, fewer
            sizes and epochs. It shows that the study works here; its numbers claim nothing.
    """

    image_size: int
    epochs: int
    seeds: int
    memory_limit: int | None = None
    quick: bool = False

    @property
    def per_class(self) -> int:
        """Integer, the most examples of each class to train on."""
        return QUICK if self.quick else FULL


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user asks of a study; `None` for what the study's own setting says.

    Attributes:
        image_size, epochs, seeds, memory_limit: See `Setting`.
    """

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
