"""Observation: what the search knows of one trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Observation:
    """The values of a trial, and what was measured of it.

    Attributes:
        values: Mapping from the name of each active hyperparameter to its value.
        rungs: Tuple of floats, what the trial had gained above chance at each rung that it reached.
        score: Float, its score at the horizon; `None` if it was stopped before, or still runs.
        running: Boolean, whether it still runs.
        out_of_memory: Boolean, whether it ran out of memory.
    """

    values: Mapping[str, Any]
    rungs: tuple[float, ...] = ()
    score: float | None = None
    running: bool = False
    out_of_memory: bool = False


@dataclass(frozen=True)
class Load:
    """What decides whether a trial fits into memory.

    Attributes:
        kind: All that decides it but the number of examples; equal for equal models and settings.
        examples: Integer, examples of a pass.
    """

    kind: Any
    examples: int

    def is_above(self, other: Load) -> bool:
        """Tell whether this takes no less memory than another load of the same kind."""
        return self.kind == other.kind and self.examples >= other.examples
