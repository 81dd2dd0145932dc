"""Plan: which segments of a model are recomputed, as a value to print, keep and apply."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from kbatch import plain_text
from kbatch.errors import RecomputeError
from kbatch.plain_text import Count, CountFrom1, Finite, Text
from kbatch.text_table import TextTable

VERSION = 1


WORTHWHILE = 0.05  # of the plain peak that a plan saves; chosen by hand


class Span(NamedTuple):
    """The positions of a segment's operations, from `start` up to but not including `stop`."""

    start: int
    stop: int
    recompute: bool


def _no_plan(received: str) -> RecomputeError:
    do = "Make the plan again: recompute.plan(model, batch_size=16)"
    return RecomputeError("A plan must be the text that Plan.to_json gave", received, do)


@dataclass(frozen=True)
class PlannedSegment:
    """Consecutive operations of a model, kept or recomputed together.

    Attributes:
        first: Name of the first operation.
        last: Name of the last operation.
        operations: Integer, number of operations.
        recompute: Boolean. If `True`, the backward pass recomputes what is inside of the segment;
            if `False`, the forward pass keeps it.

    Example:
    >>> print(PlannedSegment("conv", "pool", operations=3, recompute=True))
    recompute    3 operations  conv … pool
    """

    first: str
    last: str
    operations: CountFrom1
    recompute: bool

    @property
    def names(self) -> str:
        """The names of the first and the last operation in one text."""
        return self.first if self.operations == 1 else f"{self.first} … {self.last}"

    def __str__(self) -> str:
        what = "recompute" if self.recompute else "keep"
        unit = "operation " if self.operations == 1 else "operations"
        return f"{what:<10}{self.operations:>4} {unit}  {self.names}"


@dataclass(frozen=True)
class Plan:
    """Where a model is cut into segments, and which segments are recomputed.

    Make one with `plan`, `front` or `best_plan`, and pass it to `apply`.

    Attributes:
        strategy: Name of the strategy that made it.
        segments: Tuple of `PlannedSegment` in the model's order. Together they hold every operation
            once.
        batch_size: Integer, examples per step that the bytes are for. The cuts do not depend on it.
        kept_bytes: Integer, predicted bytes that the forward pass keeps for the backward pass.
        peak_bytes: Integer, predicted peak of a step in bytes, not counting weights and optimizer.
            A step that needs all gradients at once (`global_clipnorm`, accumulation, loss scaling)
            holds up to one more gradient.
        extra_seconds_ratio: Float, predicted seconds of recomputation as a share of a plain step.
        measured_peak_bytes: Integer, measured peak of a step in bytes, not counting what was held
            before it. `None` if it was not measured.
        measured_seconds: Float, measured seconds of a step. `None` if it was not measured.
        plain_peak_bytes: Integer, predicted peak of the model without a plan. `None` in plans of
            versions that did not keep it.
        uncut: String, why no cut can lie where most of the bytes are kept; empty where that is not
            so.
        reordered: String, the branches whose gradients are summed in another order than in plain
            training, which then equals it to rounding; empty where it equals it to the bit.
        lower_bound: Boolean, whether the model holds convolutions or recurrent layers. What cuDNN
            works in and what a loop over time holds besides is not known beforehand.

    Example:
    >>> plan = Plan("manual", (PlannedSegment("a", "b", 2, False),), 16, 1000, 2000, 0.0)
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    strategy: str
    segments: tuple[PlannedSegment, ...]
    batch_size: CountFrom1
    kept_bytes: Count
    peak_bytes: Count
    extra_seconds_ratio: Finite
    measured_peak_bytes: Count | None = None
    measured_seconds: Finite | None = None
    plain_peak_bytes: Count | None = None
    uncut: Text = ""
    reordered: Text = ""
    lower_bound: bool = False

    @property
    def recomputes(self) -> bool:
        """Whether any segment is recomputed."""
        return any(segment.recompute for segment in self.segments)

    def stretches(self) -> Iterator[tuple[int, int, bool]]:
        """Start, stop and `recompute` of each segment, as positions of the model's operations."""
        start = 0
        for segment in self.segments:
            stop = start + segment.operations
            yield start, stop, segment.recompute
            start = stop

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
        fields = plain_text.read_json(
            dict[str, Any], plain_text.parse_json(text, _no_plan), _no_plan
        )
        version = fields.pop("version", None)
        if version != VERSION or isinstance(version, bool):
            raise _no_plan(f"a plan of version {version!r}, where this kbatch reads {VERSION}")
        plan = plain_text.read_json(cls, fields, _no_plan)
        if not plan.segments:
            raise _no_plan("a plan without segments")
        return plan

    def _repr_html_(self) -> str:
        rows = [
            [segment.names, segment.operations, "yes" if segment.recompute else "no"]
            for segment in self.segments
        ]
        table = TextTable(["segment", "operations", "recompute"], rows)
        return table.html([line.strip() for line in self._summary()])

    def _summary(self) -> list[str]:
        """The plan's numbers in lines."""
        least = "at least " if self.lower_bound else ""
        lines = [
            f"{self.strategy}: {self.extra_seconds_ratio:.0%} more seconds, "
            f"peak {least}{megabytes(self.peak_bytes)} at batch {self.batch_size}"
        ]
        plain = self.plain_peak_bytes
        if plain and self.strategy != "none" and self.peak_bytes > (1 - WORTHWHILE) * plain:
            why = f": {self.uncut}" if self.uncut else ""
            lines.append(f"  saves less than {WORTHWHILE:.0%} of the plain model's peak{why}")
        if self.reordered:
            lines.append(f"  equal to plain training to rounding: {self.reordered}")
        if self.measured_peak_bytes is not None:
            lines.append(
                f"  measured: peak {megabytes(self.measured_peak_bytes)}, "
                f"{1e3 * (self.measured_seconds or 0):,.0f} ms a step"
            )
        return lines

    def __str__(self) -> str:
        return "\n".join([*self._summary(), *(f"  {segment}" for segment in self.segments)])


def spans_of(plan: Plan) -> list[Span]:
    """The positions of the operations of a plan's segments."""
    return [Span(*stretch) for stretch in plan.stretches()]


def megabytes(count: float) -> str:
    """A number of bytes in words."""
    if count >= 10e6:
        return f"{count / 1e6:,.0f} MB"
    if count >= 1e6:
        return f"{count / 1e6:,.1f} MB"
    return f"{count / 1e3:,.1f} KB"
