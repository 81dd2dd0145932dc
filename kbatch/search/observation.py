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
        rungs: Tuple of floats, what the trial held above chance at each rung that it reached.
        score: Float, its score at the horizon; `None` if it was stopped before, or still runs.
        running: Boolean, whether it still runs.
    """

    values: Mapping[str, Any]
    rungs: tuple[float, ...] = ()
    score: float | None = None
    running: bool = False
