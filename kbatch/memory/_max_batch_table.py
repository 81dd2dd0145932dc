"""`Table`: the largest batch of every combination of a space, as a value."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbatch import notebook, text_table
from kbatch.combination import Combination
from kbatch.recipe import Recipe
from kbatch.records import fingerprint

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Row:
    """The largest micro-batches of one combination.

    Attributes:
        combination: `Combination` that the row is for: `policy`, `optimizer`, `jit_compile` and
            `recompute`.
        batch_size: Integer, the largest batch size without gradient accumulation; 0 if not even one
            example fits.
        accumulated_batch_size: Integer, the largest micro-batch with it: one more gradient is held.
            Computed.
        peak_bytes: Integer, the most bytes in use while that size was trained.
        first_failing: Integer, the smallest batch size that did not pass, or `None` if all did.
        confirmed_steps: Integer, steps that it was trained in a process that had 7 % less than the
            limit.
    """

    combination: Combination
    batch_size: int
    accumulated_batch_size: int
    peak_bytes: int
    first_failing: int | None
    confirmed_steps: int

    @property
    def policy(self) -> str:
        """Keras dtype policy."""
        return self.combination.policy

    @property
    def optimizer(self) -> str:
        """Name of the optimizer."""
        return self.combination.optimizer

    @property
    def jit_compile(self) -> bool:
        """Whether XLA compiles the step."""
        return self.combination.jit_compile

    @property
    def recompute(self) -> str:
        """What the backward pass makes again."""
        return self.combination.recompute

    def to_dict(self) -> dict[str, Any]:
        """The row in JSON's own types, the parts of its combination by their own names."""
        return {
            **self.combination._asdict(),
            **{name: value for name, value in vars(self).items() if name != "combination"},
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Row:
        """The row that `to_dict` gave; parts of the combination that are missing are a plain recipe's."""
        parts = {name: value for name, value in fields.items() if name in Combination._fields}
        return cls(
            Combination(**parts),
            **{name: value for name, value in fields.items() if name not in parts},
        )

    def __str__(self) -> str:
        return f"{self.combination}: {self.batch_size}"


@dataclass(frozen=True)
class Table:
    """One row per combination; iterate over it for the rows.

    Attributes:
        rows: Tuple of `Row`.
        limit_bytes: Integer, what the device may use.
        augmentation: Name of the space's pipeline with the most layers, under which all was
            measured.
        executed_probes: Integer, batch sizes that were trained, confirmations among them.
        compilations: Integer, steps that XLA compiled without running them.
        seconds: Float, wall-clock seconds that it took.
    """

    rows: tuple[Row, ...]
    limit_bytes: int
    augmentation: str
    executed_probes: int
    compilations: int
    seconds: float

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, combination: Combination) -> Row | None:
        """The row of a combination, or `None` if the table has none."""
        return next((row for row in self.rows if row.combination == combination), None)

    @property
    def frame(self) -> pandas.DataFrame:
        """The rows as pandas has them."""
        import pandas

        return pandas.DataFrame([row.to_dict() for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """The table in JSON's own types."""
        return {**dataclasses.asdict(self), "rows": [row.to_dict() for row in self.rows]}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Table:
        """The table that `to_dict` gave, also after a trip through JSON."""
        return cls(**{**fields, "rows": tuple(map(Row.from_dict, fields["rows"]))})

    @classmethod
    def of_project(cls, directory: str | os.PathLike[str]) -> Table | None:
        """The table that the project of a search was begun with, or `None`.

        Args:
            directory: Folder of the KerasTuner project.
        """
        fields = (fingerprint.load(Path(directory) / fingerprint.FOLDER) or {}).get("table")
        return None if fields is None else cls.from_dict(fields)

    def _later_axes(self) -> list[str]:
        """The axes after the first four that some row does not leave to a plain recipe."""
        plain = Combination()
        return [
            name
            for name in Combination._fields[4:]
            if any(getattr(row.combination, name) != getattr(plain, name) for row in self.rows)
        ]

    def _repr_html_(self) -> str:
        head = ["recipe", "largest batch", "accumulating", "peak MB"]
        rows = [
            [
                row.combination,
                row.batch_size or "none fits",
                row.accumulated_batch_size or "none fits",
                f"{row.peak_bytes / 1e6:,.0f}",
            ]
            for row in self
        ]
        return notebook.table(head, rows, [str(self).splitlines()[-1]])

    def __str__(self) -> str:
        later = self._later_axes()
        left = ("policy", "optimizer", "jit", "recompute", *later)
        cells = [
            (
                row.policy,
                row.optimizer,
                "yes" if row.jit_compile else "no",
                row.recompute,
                *(getattr(row.combination, name) for name in later),
                row.batch_size or "none fits",
                row.accumulated_batch_size or "none fits",
                f"{row.peak_bytes / 1e6:,.0f}",
            )
            for row in self.rows
        ]
        table = text_table.columns((*left, "largest batch", "accumulating", "peak MB"), cells, left)
        trained = f"{self.executed_probes} batch sizes trained, {self.seconds:.0f} s"
        return f"{table}\nlimit {self.limit_bytes / 1e6:,.0f} MB; {trained}"


def recipe_of(combination: Combination, augmentation: str) -> Recipe:
    """The recipe to measure a combination with."""
    rate: Any = None if combination.optimizer == "compiled" else 1e-3
    return Recipe(**combination._asdict(), learning_rate=rate, augmentation=augmentation)
