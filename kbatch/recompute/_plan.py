"""`Plan`: which segments of a model are recomputed in the backward pass, as a value that is printed, kept and applied."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kbatch import json_form, notebook
from kbatch.errors import RecomputeError
from kbatch.json_form import Count, CountFrom1, Finite

VERSION = 1


def _no_plan(received: str) -> RecomputeError:
    do = "Make the plan again: recompute.plan(model, batch_size=16)"
    return RecomputeError("A plan must be the text that Plan.to_json gave", received, do)


def megabytes(count: float) -> str:
    """Bytes in words."""
    return (
        f"{count / 1e6:,.0f} MB"
        if count >= 10e6
        else f"{count / 1e6:,.1f} MB"
        if count >= 1e6
        else f"{count / 1e3:,.1f} KB"
    )


@dataclass(frozen=True)
class PlannedSegment:
    """One stretch of a model's operations.

    Attributes:
        first: Name of its first operation.
        last: Name of its last.
        operations: Integer, how many it has.
        recompute: Boolean, whether its inside is made again in the backward pass instead of being
            kept.
    """

    first: str
    last: str
    operations: CountFrom1
    recompute: bool

    def __str__(self) -> str:
        names = self.first if self.operations == 1 else f"{self.first} … {self.last}"
        what, count = (
            "recompute" if self.recompute else "keep",
            "operation " if self.operations == 1 else "operations",
        )
        return f"{what:<10}{self.operations:>4} {count}  {names}"


@dataclass(frozen=True)
class Plan:
    """Where a model is cut, and which segments are recomputed.

    Attributes:
        strategy: Name of the strategy that made it.
        segments: Tuple of `PlannedSegment` in the model's order; together they hold every operation
            once.
        batch_size: Integer, the batch that the bytes are for; the cuts do not depend on it.
        kept_bytes: Integer, predicted bytes that the forward pass keeps for the backward pass.
        peak_bytes: Integer, predicted most bytes of one step beside weights and optimizer. One that
            needs all gradients at once (`global_clipnorm`, accumulation, loss scaling) holds up to
            one gradient more.
        extra_seconds_ratio: Float, predicted seconds of what is run again, as a share of a plain
            step's.
        measured_peak_bytes: Integer, what a step really needed beside what was held before it;
            `None` if it was not measured.
        measured_seconds: Float, what a step really took; `None` if it was not measured.
    """

    strategy: str
    segments: tuple[PlannedSegment, ...]
    batch_size: CountFrom1
    kept_bytes: Count
    peak_bytes: Count
    extra_seconds_ratio: Finite
    measured_peak_bytes: Count | None = None
    measured_seconds: Finite | None = None

    @property
    def recomputes(self) -> bool:
        """Whether anything is made again at all."""
        return any(segment.recompute for segment in self.segments)

    def stretches(self) -> Iterator[tuple[int, int, bool]]:
        """Start, stop and `recompute` of each segment, as positions in the chain."""
        start = 0
        for segment in self.segments:
            yield start, start + segment.operations, segment.recompute
            start += segment.operations

    def to_json(self) -> str:
        """Return the plan as JSON text, to be kept in a file."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read the plan that `to_json` wrote.

        Args:
            text: String, JSON text.

        Raises:
            RecomputeError: If the text is not a plan, or a plan of another version of kbatch.
        """
        fields = json_form.read(dict[str, Any], json_form.parse(text, _no_plan), _no_plan)
        version = fields.pop("version", None)
        if version != VERSION or isinstance(version, bool):
            raise _no_plan(f"a plan of version {version!r}, where this kbatch reads {VERSION}")
        plan = json_form.read(cls, fields, _no_plan)
        if not plan.segments:
            raise _no_plan("a plan without segments")
        return plan

    def _repr_html_(self) -> str:
        rows = [
            [
                segment.first if segment.operations == 1 else f"{segment.first} … {segment.last}",
                segment.operations,
                "yes" if segment.recompute else "no",
            ]
            for segment in self.segments
        ]
        said = [line.strip() for line in str(self).splitlines()]
        return notebook.table(
            ["segment", "operations", "recompute"], rows, said[: len(said) - len(self.segments)]
        )

    def __str__(self) -> str:
        lines = [
            f"{self.strategy}: {self.extra_seconds_ratio:.0%} more seconds, peak {megabytes(self.peak_bytes)} at batch {self.batch_size}"
        ]
        if self.measured_peak_bytes is not None:
            lines.append(
                f"  measured: peak {megabytes(self.measured_peak_bytes)}, {1e3 * (self.measured_seconds or 0):,.0f} ms a step"
            )
        return "\n".join([*lines, *(f"  {segment}" for segment in self.segments)])
