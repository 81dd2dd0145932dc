"""The curves of a search: the metric over training seconds, computed apart from their drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbatch import scoring
from kbatch.goal import Goal
from kbatch.records.store import Record
from kbatch.results import noise
from kbatch.results.confirmed_recipes import confirmed

Points = tuple[tuple[float, float], ...]
Band = list[tuple[float, float, float]]
BASELINE, BEST, OTHER = "baseline", "best", "other"
SEARCH, CONFIRMATION = "search", "confirmation"


@dataclass(frozen=True)
class CurveInfo:
    """The curves of one recipe's trainings.

    Attributes:
        label: The recipe in words.
        role: `"baseline"`, `"best"` or `"other"`.
        curves: Tuple of each training's `(train_seconds, value)` points.
        held: Tuple of the points whose values are held, one per training that held any.
    """

    label: str
    role: str
    curves: tuple[Points, ...]
    held: Points

    @property
    def mean(self) -> Points:
        """The mean curve, from where all trainings have begun to where the first ended."""
        if len(self.curves) == 1:
            return self.curves[0]
        times, values = self._values_at_common_times()
        return tuple(zip(times, np.mean(values, axis=0).tolist(), strict=True)) if times else ()

    @property
    def spread(self) -> Band:
        """One standard deviation around the mean: `(seconds, lower, upper)`.

        Empty for a single training.
        """
        if len(self.curves) == 1:
            return []
        times, values = self._values_at_common_times()
        if not times:
            return []
        mean, deviation = np.mean(values, axis=0), np.std(values, axis=0, ddof=1)
        lower, upper = (mean - deviation).tolist(), (mean + deviation).tolist()
        return list(zip(times, lower, upper, strict=True))

    def _values_at_common_times(self) -> tuple[list[float], Any]:
        """The first training's times that all trainings cover, and each training's values there."""
        begin = max(curve[0][0] for curve in self.curves)
        end = min(curve[-1][0] for curve in self.curves)
        times = [time for time, _ in self.curves[0] if begin <= time <= end]
        return times, [np.interp(times, *np.transpose(curve)) for curve in self.curves]


@dataclass(frozen=True)
class PanelInfo:
    """Curves that share their axes: those of the search, or those of its confirmation.

    Attributes:
        name: `"search"` or `"confirmation"`.
        title: Title of the panel.
        curves: Tuple of `CurveInfo`. The important ones come last, so that they are drawn on top.
    """

    name: str
    title: str
    curves: tuple[CurveInfo, ...]

    @property
    def seconds(self) -> float:
        """Training seconds of the longest training."""
        longest = 0.0
        for info in self.curves:
            longest = max([longest, *(curve[-1][0] for curve in info.curves)])
        return longest


def panels(records: Sequence[Record], goal: Goal, best: Record | None) -> list[PanelInfo]:
    """Return the panels of the confirmation and of the search, without the empty ones.

    Args:
        records: All records of a search.
        goal: The goal of the search.
        best: Record of the best recipe, as `winner.best_of` gives it.
    """
    both = (_confirmation_panel(records, goal, best), _search_panel(records, goal, best))
    return [panel for panel in both if panel.curves]


def band(points: Points, metric: str, examples: int) -> Band:
    """Return the 95 % band of a curve's measurements: `(seconds, lower, upper)`.

    Empty if the error of the metric cannot be known.
    """
    around = []
    for seconds, value in points:
        error = noise.value_error(value, metric, examples)
        if error is None:
            return []
        # the error is that of a share
        around.append((seconds, max(value - 2 * error, 0.0), min(value + 2 * error, 1.0)))
    return around


def _search_panel(records: Sequence[Record], goal: Goal, best: Record | None) -> PanelInfo:
    """The trials, then the baseline, then the trial of the best recipe."""
    measured = [record for record in records if record.outcome.curve]
    trials = [record for record in measured if record.purpose == "search"]
    own = next((record for record in trials if record is best), None)
    infos = [
        _curve_info(f"trial {record.trial}: {record.recipe}", OTHER, [record], goal)
        for record in trials
        if record is not own
    ]
    for record in measured:
        if record.purpose == "baseline":
            infos.append(_curve_info(f"baseline: {record.recipe}", BASELINE, [record], goal))
    if own:
        infos.append(_curve_info(f"trial {own.trial}: {own.recipe}", BEST, [own], goal))
    return PanelInfo(SEARCH, "The search: each trial", tuple(infos))


def _confirmation_panel(records: Sequence[Record], goal: Goal, best: Record | None) -> PanelInfo:
    """The confirmed recipes, then the baseline, then the best recipe."""
    infos = []
    for group in confirmed(records).values():
        measured = [record for record in group if record.outcome.curve]
        if measured:
            label, role = _label_and_role(group[0], best)
            infos.append(_curve_info(label, role, measured, goal))
    infos.sort(key=lambda info: (OTHER, BASELINE, BEST).index(info.role))
    seeds = max((len(info.curves) for info in infos), default=0)
    title = f"The confirmation: {seeds} fresh seeds each (thin) and their mean"
    if seeds == 1:
        title = "The confirmation: 1 fresh seed each"
    return PanelInfo(CONFIRMATION, title, tuple(infos))


def _label_and_role(record: Record, best: Record | None) -> tuple[str, str]:
    """The label and the role of a confirmed recipe."""
    if record.baseline:
        return f"baseline: {record.recipe}", BASELINE
    if best is not None and record.trial == best.trial:
        return f"trial {best.trial}: {best.recipe}", BEST
    return f"also confirmed, trial {record.trial}: {record.recipe}", OTHER


def _curve_info(label: str, role: str, records: Sequence[Record], goal: Goal) -> CurveInfo:
    curves = tuple(record.outcome.curve for record in records)
    held_points = []
    for curve in curves:
        held = scoring.held(curve, goal.direction)
        if held:
            held_points.append(curve[held.index])
    return CurveInfo(label, role, curves, tuple(held_points))
