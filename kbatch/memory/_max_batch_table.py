"""`Table`: the largest batch of every combination of a space."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbatch import json_form, notebook, text_table
from kbatch.combination import Combination
from kbatch.errors import RecordError
from kbatch.json_form import Whole
from kbatch.memory._max_batch import too_large
from kbatch.recipe import Recipe
from kbatch.records import project

if TYPE_CHECKING:
    import pandas


STAND_IN_RATE = 1e-3  # of a training that is measured, not judged


@dataclass(frozen=True)
class Row:
    """The largest micro-batches of one combination.

    Attributes:
        combination: `Combination` that the row is for: `policy`, `optimizer`, `jit_compile` and
            `recompute`.
        batch_size: Integer, the largest batch size without gradient accumulation; 0 if not even one
            example fits.
        accumulated_batch_size: Integer, the largest micro-batch with gradient accumulation, which
            holds one more gradient, and with SAM or proximal training all examples of the batch.
            Computed, not trained.
        peak_bytes: Integer, peak bytes in use while `batch_size` was trained.
        first_failing: Integer, the smallest batch size that failed, or `None` if none did.
        confirmed_steps: Integer, steps that `batch_size` was trained in a process that had 7 % less
            than the limit.
        why_failing: String, the error at `first_failing` where it does not name memory; else `""`.
        first_peak_bytes: Integer, peak bytes of the first step on a GPU, which `peak_bytes` leaves
            out; else 0.
    """

    combination: Combination
    batch_size: Whole
    accumulated_batch_size: Whole
    peak_bytes: Whole
    first_failing: Whole | None
    confirmed_steps: Whole
    why_failing: str = ""
    first_peak_bytes: Whole = 0

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
        """The recompute strategy."""
        return self.combination.recompute

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict for JSON, with each part of its combination by name."""
        return {
            **self.combination._asdict(),
            **{name: value for name, value in vars(self).items() if name != "combination"},
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Row:
        """Read the row that `to_dict` made, also after JSON.

        A part of the combination that is missing has the default of `Recipe`.

        Raises:
            RecordError: If another field is missing, unknown or of another type.
        """
        return json_form.read(cls, _by_combination(fields), _no_table)

    def __str__(self) -> str:
        text = f"{self.combination}: {self.batch_size}"
        if self.why_failing and self.first_failing is not None:
            text += f" ({too_large(self.first_failing, self.why_failing)})"
        return text


@dataclass(frozen=True)
class Table:
    """One row per combination; iterate over it for the rows.

    Attributes:
        rows: Tuple of `Row`.
        limit_bytes: Integer, what the device may use.
        augmentation: Name of the space's pipeline with the most layers, with which all rows were
            measured.
        executed_probes: Integer, batch sizes that were trained, confirmations among them.
        compilations: Integer, batch sizes that XLA compiled without running them.
        seconds: Float, wall-clock seconds of the search.
        shape: String, the shape of one example that the rows hold for, as in `MaxBatch`.
    """

    rows: tuple[Row, ...]
    limit_bytes: Whole
    augmentation: str
    executed_probes: Whole
    compilations: Whole
    seconds: float
    shape: str = ""

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
        """Return the table as a dict that JSON can hold."""
        return {**dataclasses.asdict(self), "rows": [row.to_dict() for row in self.rows]}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Table:
        """Read the table that `to_dict` made, also after JSON.

        Raises:
            RecordError: If a field is missing, unknown or of another type.
        """
        rows = json_form.read(tuple[dict[str, Any], ...], fields.get("rows", ()), _no_table)
        return json_form.read(cls, {**fields, "rows": [*map(_by_combination, rows)]}, _no_table)

    @classmethod
    def of_project(cls, directory: str | os.PathLike[str]) -> Table | None:
        """Read the table that the project of a search was started with; `None` if it had none.

        Args:
            directory: Path of the folder of the KerasTuner project.
        """
        fields = (project.load_facts(Path(directory) / project.FOLDER) or {}).get("table")
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
        at = f" at {self.shape}" if self.shape else ""
        return f"{table}\nlimit {self.limit_bytes / 1e6:,.0f} MB{at}; {trained}"


def _by_combination(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row with the parts of its combination gathered into one."""
    parts = {name: value for name, value in fields.items() if name in Combination._fields}
    others = {name: value for name, value in fields.items() if name not in parts}
    return {"combination": Combination(**parts), **others}


def _no_table(received: str) -> RecordError:
    return RecordError(
        "A table of largest batches must be read from what Table.to_dict wrote",
        received,
        "Measure it again: kbatch.max_batches",
    )


def recipe_of(combination: Combination, augmentation: str) -> Recipe:
    """The recipe to measure a combination with; no rate changes the memory that a step needs."""
    rate: Any = None if combination.optimizer == "compiled" else STAND_IN_RATE
    return Recipe(**combination._asdict(), learning_rate=rate, augmentation=augmentation)
