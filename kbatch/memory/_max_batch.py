"""Max batch: the largest batch of a recipe, and the table of a space."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbatch import plain_text
from kbatch.errors import MemoryLimitError, RecordError
from kbatch.plain_text import Whole
from kbatch.recipe import Recipe
from kbatch.records import project
from kbatch.space import Combination
from kbatch.text_table import TextTable

if TYPE_CHECKING:
    import pandas


WHY = 160  # characters of an error that are shown
NODES = re.compile(r"\{\{.*?\}\}|\w+Error: (?=Graph execution)")
PLACES = re.compile(r"Graph execution error|Detected at|File \"|Stack trace|\[\[|Hint: ")


@dataclass(frozen=True)
class Probe:
    """The result of one batch size.

    Attributes:
        batch_size: Integer, examples per forward and backward pass.
        ended: `"passed"` or `"out_of_memory"`. `"suspect"` (an ambiguous error), `"died"` (the
            process ended) and `"hung"` mean out of memory only if a smaller batch passes.
        peak_bytes: Integer, peak bytes in use during the steps, or until the failure.
        seconds: Float, wall-clock seconds of the whole probe.
        step_seconds: Tuple of floats, of each step that passed; the first one traces and compiles.
        message: String, the text of the error.
        phase: `"training"`, or `"validation"` if validation failed after all steps were trained.
        first_peak_bytes: Integer, peak bytes of the first step where that one is not counted in
            `peak_bytes`, else 0. On a GPU cuDNN tries its algorithms in the first step, with
            scratch memory that no later step needs.
    """

    batch_size: int
    ended: str
    peak_bytes: int
    seconds: float
    step_seconds: tuple[float, ...] = ()
    message: str = ""
    phase: str = "training"
    first_peak_bytes: int = 0

    @property
    def passed(self) -> bool:
        """Whether all steps were trained."""
        return self.ended == "passed"


@dataclass(frozen=True)
class MaxBatch:
    """The largest batch size that safely trains.

    Attributes:
        batch_size: Integer, the largest micro-batch: examples per forward and backward pass.
        peak_bytes: Integer, peak bytes in use while that size was trained.
        limit_bytes: Integer, what the device may use.
        first_failing: Integer, the smallest batch size that failed, with the whole limit or with
            7 % less; `None` if none did.
        probes: Tuple of `Probe` (batch_size, ended, peak_bytes, seconds), in their order.
        confirmations: Tuple of `Probe`, the longer trainings, in a fresh process that has 7 % less
            than the limit, since without XLA the need varies from step to step. A ceiling that
            takes less than three quarters of the limit is confirmed in the process of the probes.
            Where steps are slow the predicted size may be confirmed first of all, in the first
            process while 7 % of the limit are taken.
        confirmed_steps: Integer, steps that the size was trained by its confirmation, before a full
            and a partial validation batch; 0 if nothing was confirmed.
        predicted: Integer, the size that was predicted before the first probe, or `None`.
        ceiling: Integer, the largest size that was allowed, or `None`.
        recipe: `Recipe` that the size holds for.
        seconds: Float, wall-clock seconds of the search.
        no_faster_from: Integer, the size from which on larger batches gain no speed, if that is why
            the size is not larger; else `None`.
        why_failing: String, the error at `first_failing` where it does not name memory; else `""`.
        most_examples: Integer, the largest size whose tensors the GPU's kernels can count by 32
            bits, if that is why the size is not larger; else `None`.
        shape: String, the shape of one example that the size holds for, where examples differ or
            `shape=` was passed, such as `"the longest shape (512,)"`; else `""`.
    """

    batch_size: Whole
    peak_bytes: Whole
    limit_bytes: Whole
    first_failing: Whole | None
    probes: tuple[Probe, ...]
    confirmations: tuple[Probe, ...]
    confirmed_steps: Whole
    predicted: Whole | None
    ceiling: Whole | None
    recipe: Recipe
    seconds: float
    no_faster_from: Whole | None = None
    why_failing: str = ""
    most_examples: Whole | None = None
    shape: str = ""

    @property
    def margin(self) -> float:
        """The share of the limit that was free while the size was trained."""
        return 1 - self.peak_bytes / self.limit_bytes

    @property
    def at_ceiling(self) -> bool:
        """Whether a ceiling, not memory, bounds the size."""
        return self.ceiling is not None and self.batch_size >= self.ceiling

    def __str__(self) -> str:
        unit, divisor, digits = ("MB", 1e6, 0)
        if self.limit_bytes >= 1e9:
            unit, divisor, digits = ("GB", 1e9, 1)
        peak, whole = self.peak_bytes / divisor, self.limit_bytes / divisor
        text = f"batch {self.batch_size} uses {peak:.{digits}f} of {whole:.{digits}f} {unit}"
        if self.shape:
            text += f" at {self.shape}"
        if self.at_ceiling:
            text += f"; {self.ceiling} is the ceiling"
        elif self.no_faster_from is not None:
            text += "; larger ones are no faster"
        elif self.most_examples is not None:
            text += "; larger ones have tensors of more elements than the GPU's kernels count"
        elif self.first_failing is not None:
            text += f"; {too_large(self.first_failing, self.why_failing)}"
        return text + (
            f"; confirmed with {self.confirmed_steps} steps"
            if self.confirmed_steps
            else "; not confirmed"
        )

    def _repr_html_(self) -> str:
        tried = [
            [
                probe.batch_size,
                probe.ended.replace("_", " "),
                f"{probe.peak_bytes / 1e6:,.0f}",
                len(probe.step_seconds),
            ]
            for probe in self.probes
        ]
        again = [
            [
                probe.batch_size,
                f"{probe.ended.replace('_', ' ')}, confirming",
                f"{probe.peak_bytes / 1e6:,.0f}",
                len(probe.step_seconds),
            ]
            for probe in self.confirmations
        ]
        table = TextTable(["batch", "ended", "peak MB", "steps"], [*tried, *again])
        return table.html([str(self), f"recipe: {self.recipe}"])

    def to_json(self) -> str:
        """Return the result as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> MaxBatch:
        """Read the result that `to_json` wrote.

        Raises:
            RecordError: If the text is not such a result.
        """
        return cls.from_dict(plain_text.parse_json(text, _no_max_batch))

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> MaxBatch:
        """Read the result that `dataclasses.asdict` made, also after JSON.

        Raises:
            RecordError: If a field is missing, unknown or of another type.
        """
        return plain_text.read_json(cls, fields, _no_max_batch)


def too_large(batch_size: int, why: str) -> str:
    """Say that a size failed, and with which error if that does not name memory."""
    if not why:
        return f"{batch_size} is too large"
    return f"{batch_size} fails with an error that does not name memory: {_reason(why)}"


def _reason(message: str) -> str:
    """The line of an error that says why, without where TensorFlow met it."""
    lines = [line.strip() for line in NODES.sub("", message).splitlines()]
    said = [line for line in lines if line and not PLACES.match(line)]
    return (said or lines or [""])[0][:WHY]


def _no_max_batch(received: str) -> RecordError:
    return RecordError(
        "A MaxBatch must be read from what MaxBatch.to_json wrote",
        received,
        "Find the largest batch again: kbatch.find_max_batch",
    )


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
        length: Integer, length of the examples, in a table of several; else 0.
    """

    combination: Combination
    batch_size: Whole
    accumulated_batch_size: Whole
    peak_bytes: Whole
    first_failing: Whole | None
    confirmed_steps: Whole
    why_failing: str = ""
    first_peak_bytes: Whole = 0
    length: Whole = 0

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
        return plain_text.read_json(cls, _by_combination(fields), _no_table)

    def __str__(self) -> str:
        at = f" at length {self.length}" if self.length else ""
        text = f"{self.combination}{at}: {self.batch_size}"
        if self.why_failing and self.first_failing is not None:
            text += f" ({too_large(self.first_failing, self.why_failing)})"
        return text


@dataclass(frozen=True)
class Table:
    """One row per combination, and length if several were asked for; iterate over it for the rows.

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
        """The row of a combination, of the longest examples; `None` if the table has none."""
        rows = [row for row in self.rows if row.combination == combination]
        return max(rows, key=lambda row: row.length, default=None)

    def buckets(self, combination: Combination | None = None) -> dict[str, list[int]]:
        """Return the buckets that `tf.data.Dataset.bucket_by_sequence_length` takes.

        Use it to train on examples of very different lengths: a batch of short ones then holds
        more of them. Each bucket is padded to its longest example, and its batch size fits.
        Examples that are longer than the table's longest must be cut before.

        Args:
            combination: `Combination` of the rows. Defaults to that of the first.

        Returns:
            Dict of `bucket_boundaries` and `bucket_batch_sizes`.

        Raises:
            MemoryLimitError: If the table has no lengths for it, or one of them does not fit.

        Example:
        ```python
        table = kbatch.max_batches(build, x, y, space, "8GB", lengths=(128, 256, 512))
        data = data.bucket_by_sequence_length(lambda x, y: tf.size(x), **table.buckets())
        ```
        """
        wanted = combination or self.rows[0].combination
        rows = [row for row in self.rows if row.combination == wanted and row.length]
        if not rows or not all(row.batch_size for row in rows):
            raise MemoryLimitError(
                "Buckets must come from a table of lengths, each of which fits",
                f"{[str(row) for row in rows]} for {wanted}",
                "Pass lengths= to kbatch.max_batches, or leave the longest out",
            )
        rows.sort(key=lambda row: row.length)
        return {
            "bucket_boundaries": [row.length + 1 for row in rows[:-1]],
            "bucket_batch_sizes": [row.batch_size for row in rows],
        }

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
        rows = plain_text.read_json(tuple[dict[str, Any], ...], fields.get("rows", ()), _no_table)
        return plain_text.read_json(
            cls, {**fields, "rows": [*map(_by_combination, rows)]}, _no_table
        )

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
        rows = [[row.combination, *_cells(row)] for row in self]
        return TextTable(["recipe", *self._headings], rows).html([self._note()])

    @property
    def _headings(self) -> list[str]:
        length = ["length"] if any(row.length for row in self) else []
        return [*length, "largest batch", "accumulating", "peak MB"]

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
                *_cells(row),
            )
            for row in self.rows
        ]
        headings = (*left, *self._headings)
        return TextTable(headings, cells, left).text([self._note()])

    def _note(self) -> str:
        trained = f"{self.executed_probes} batch sizes trained, {self.seconds:.0f} s"
        at = f" at {self.shape}" if self.shape else ""
        return f"limit {self.limit_bytes / 1e6:,.0f} MB{at}; {trained}"


def _cells(row: Row) -> list[Any]:
    """What a table shows of a row behind its recipe."""
    length = [row.length] if row.length else []
    sizes = [size or "none fits" for size in (row.batch_size, row.accumulated_batch_size)]
    return [*length, *sizes, f"{row.peak_bytes / 1e6:,.0f}"]


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


@dataclass(frozen=True)
class SearchResult:
    """The largest batch size that passed, and the probes that show it."""

    batch_size: int  # the largest batch size that passed; 0 if none did
    first_failing: int | None  # the smallest that failed, or `None` if none did
    probes: tuple[Probe, ...] = ()  # with the whole limit, in their order
    # The longer trainings with a part of the limit kept free.
    confirmations: tuple[Probe, ...] = ()

    @classmethod
    def of(cls, probes: tuple[Probe, ...], confirmations: tuple[Probe, ...] = ()) -> SearchResult:
        """The largest size that passed below all that failed, by its confirmations if it has any.

        A size that passed once and failed once is not reliable.
        """
        failed = [each.batch_size for each in (*probes, *confirmations) if not each.passed]
        passed = [each.batch_size for each in confirmations or probes if each.passed]
        sure = (size for size in passed if not failed or size < min(failed))
        return cls(max(sure, default=0), min(failed, default=None), probes, confirmations)

    @property
    def confirmed_steps(self) -> int:
        """Steps that the size was trained by its confirmations."""
        return sum(len(probe.step_seconds) for probe in self._passed(self.confirmations))

    @property
    def peak_bytes(self) -> int:
        """Peak bytes of the size in its confirmations; without one, in its probes."""
        passed = self._passed(self.confirmations) or self._passed(self.probes)
        return max((probe.peak_bytes for probe in passed), default=0)

    @property
    def first_peak_bytes(self) -> int:
        """Peak bytes of the first step of its confirmations on a GPU; else 0."""
        passed = self._passed(self.confirmations)
        return max((probe.first_peak_bytes for probe in passed), default=0)

    @property
    def why_failing(self) -> str:
        """The error at the smallest size that failed, if it does not name memory; else `""`."""
        errors = (
            each.message
            for each in (*self.probes, *self.confirmations)
            if each.batch_size == self.first_failing and each.ended == "suspect"
        )
        return next(errors, "")

    @property
    def last(self) -> Probe | None:
        """The last training of all, or `None` if there was none."""
        tried = (*self.probes, *self.confirmations)
        return tried[-1] if tried else None

    def _passed(self, probes: tuple[Probe, ...]) -> list[Probe]:
        return [each for each in probes if each.passed and each.batch_size == self.batch_size]
