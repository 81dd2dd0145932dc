"""`MaxBatch`: the largest batch size that safely trains, and the probes that show it."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from kbatch import json_form, notebook
from kbatch.errors import RecordError
from kbatch.json_form import Whole
from kbatch.memory._probe import Probe
from kbatch.recipe import Recipe

WHY = 160  # characters of an error that are shown
NODES = re.compile(r"\{\{.*?\}\}|\w+Error: (?=Graph execution)")
PLACES = re.compile(r"Graph execution error|Detected at|File \"|Stack trace|\[\[|Hint: ")


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
        return notebook.table(
            ["batch", "ended", "peak MB", "steps"],
            [*tried, *again],
            [str(self), f"recipe: {self.recipe}"],
        )

    def to_json(self) -> str:
        """Return the result as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> MaxBatch:
        """Read the result that `to_json` wrote.

        Raises:
            RecordError: If the text is not such a result.
        """
        return cls.from_dict(json_form.parse(text, _no_max_batch))

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> MaxBatch:
        """Read the result that `dataclasses.asdict` made, also after JSON.

        Raises:
            RecordError: If a field is missing, unknown or of another type.
        """
        given = json_form.read(dict[str, Any], fields, _no_max_batch)
        # early versions wrote the name of a search strategy too
        known = {name: value for name, value in given.items() if name != "strategy"}
        return json_form.read(cls, known, _no_max_batch)


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
