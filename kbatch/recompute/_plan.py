"""Plan: which segments of a model are recomputed, as a value to print, keep and apply."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from kbatch import notebook
from kbatch.errors import RecomputeError

VERSION = 1


class Span(NamedTuple):
    """The positions of a segment's operations, from `start` up to but not including `stop`."""

    start: int
    stop: int
    recompute: bool


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
    operations: int
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

    Example:
    >>> plan = Plan("manual", (PlannedSegment("a", "b", 2, False),), 16, 1000, 2000, 0.0)
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    strategy: str
    segments: tuple[PlannedSegment, ...]
    batch_size: int
    kept_bytes: int
    peak_bytes: int
    extra_seconds_ratio: float
    measured_peak_bytes: int | None = None
    measured_seconds: float | None = None

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
        """The plan as text, to be kept in a file."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a text that `to_json` returned.

        Args:
            text: String.

        Returns:
            The `Plan`.

        Raises:
            RecomputeError: If the text is not a plan.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            version = fields.pop("version")
            segments = tuple(PlannedSegment(**segment) for segment in fields.pop("segments"))
            plan = cls(segments=segments, **fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _not_a_plan(repr(error)) from error
        if version != VERSION or isinstance(version, bool):
            raise _not_a_plan(f"one of version {version!r}, where this kbatch reads {VERSION}")
        parts = [plan, *segments]
        for name, value in itertools.chain.from_iterable(vars(part).items() for part in parts):
            if not _IS_VALID[name](value):
                raise _not_a_plan(f"{name}={value!r}")
        return plan

    def _repr_html_(self) -> str:
        rows = [
            [segment.names, segment.operations, "yes" if segment.recompute else "no"]
            for segment in self.segments
        ]
        return notebook.table(
            ["segment", "operations", "recompute"], rows, [line.strip() for line in self._summary()]
        )

    def _summary(self) -> list[str]:
        """The plan's numbers in lines."""
        lines = [
            f"{self.strategy}: {self.extra_seconds_ratio:.0%} more seconds, "
            f"peak {megabytes(self.peak_bytes)} at batch {self.batch_size}"
        ]
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


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value < float("inf")


def _is_whole(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int)


def _is_count(value: Any) -> bool:
    return _is_whole(value) and value > 0


# Whether a value read from a file is valid, by the name of its field.
_IS_VALID: dict[str, Callable[[Any], bool]] = {
    "first": _is_text,
    "last": _is_text,
    "operations": _is_count,
    "recompute": lambda value: isinstance(value, bool),
    "strategy": _is_text,
    "segments": lambda value: len(value) > 0,
    "batch_size": _is_count,
    "kept_bytes": _is_whole,
    "peak_bytes": _is_whole,
    "extra_seconds_ratio": _is_number,
    "measured_peak_bytes": lambda value: value is None or _is_whole(value),
    "measured_seconds": lambda value: value is None or _is_number(value),
}


def _not_a_plan(received: str) -> RecomputeError:
    return RecomputeError(
        "A plan must be the text that Plan.to_json gave",
        received,
        "Make the plan again: recompute.plan(model, batch_size=16)",
    )
