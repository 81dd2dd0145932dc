"""Figure data: what the figures of a search show, computed apart from how it is drawn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbatch import scoring
from kbatch.records.record import Record
from kbatch.results import noise
from kbatch.results.best import best_of
from kbatch.results.claim import confirmed

Points = tuple[tuple[float, float], ...]
BASELINE, BEST, OTHER = "baseline", "best", "other"


@dataclass(frozen=True)
class CurveInfo:
    """One recipe's trainings as curves.

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
        """The mean over trainings, from where all have begun to where the first ended; the curve itself if there is one."""
        if len(self.curves) == 1:
            return self.curves[0]
        times, values = self._at_the_firsts_times()
        return tuple(zip(times, np.mean(values, axis=0).tolist(), strict=True)) if times else ()

    @property
    def spread(self) -> list[tuple[float, float, float]]:
        """One standard deviation over the trainings around their mean: `(seconds, lower, upper)`; empty for a single one."""
        if len(self.curves) == 1:
            return []
        times, values = self._at_the_firsts_times()
        if not times:
            return []
        mean, deviation = np.mean(values, axis=0), np.std(values, axis=0, ddof=1)
        return list(
            zip(times, (mean - deviation).tolist(), (mean + deviation).tolist(), strict=True)
        )

    def _at_the_firsts_times(self) -> tuple[list[float], Any]:
        """The times of the first training's points that all trainings have passed, and the values of each there."""
        first, last = (
            max(curve[0][0] for curve in self.curves),
            min(curve[-1][0] for curve in self.curves),
        )
        times = [time for time, _ in self.curves[0] if first <= time <= last]
        return times, [
            np.interp(times, [time for time, _ in curve], [value for _, value in curve])
            for curve in self.curves
        ]


@dataclass(frozen=True)
class PanelInfo:
    """Curves that share their axes: those of the search, or those of its confirmation.

    Attributes:
        title: What they are.
        curves: Tuple of `CurveInfo`, those that matter last, so that they are drawn on top.
    """

    title: str
    curves: tuple[CurveInfo, ...]

    @property
    def seconds(self) -> float:
        """Training seconds of the one that ran longest."""
        return max((curve[-1][0] for info in self.curves for curve in info.curves), default=0.0)


@dataclass(frozen=True)
class BatchInfo:
    """One training as a point over its batch size.

    Attributes:
        optimizer: Its name, or that the model's own was used.
        policy: Keras dtype policy.
        batch_size: Integer.
        value: The metric held, or with a target the seconds to it; `None` if the target was not
            reached.
        error: Standard error of the value, or `None`.
        examples_per_second: Float.
        baseline: Boolean, whether it is the baseline.
    """

    optimizer: str
    policy: str
    batch_size: int
    value: float | None
    error: float | None
    examples_per_second: float
    baseline: bool


def panels(records: Sequence[Record], goal: dict[str, Any]) -> list[PanelInfo]:
    """The confirmation, if there is one, and the search; none if nothing was measured.

    Args:
        records: All records of a search.
        goal: The goal of the search.
    """
    again = _confirmation(records, goal)
    search = _search(records, goal)
    return [panel for panel in (again, search) if panel.curves]


def batch_infos(
    records: Sequence[Record], goal: dict[str, Any], examples: int, own_optimizer: str = ""
) -> list[BatchInfo]:
    """Every training of the search that measured something, as a point over its batch size, smallest batch first.

    Args:
        records: All records of a search.
        goal: The goal of the search.
        examples: Integer, validation examples.
        own_optimizer: Name of the optimizer that the user's model was compiled with, if the project
            tells it.
    """
    measured = [
        record
        for record in records
        if record.purpose in ("search", "baseline") and record.outcome.value is not None
    ]
    return sorted(
        (_batch(record, goal, examples, own_optimizer) for record in measured),
        key=lambda info: info.batch_size,
    )


def _batch(record: Record, goal: dict[str, Any], examples: int, own_optimizer: str) -> BatchInfo:
    outcome, target = record.outcome, goal.get("target")
    value, error = outcome.value, noise.value_error(outcome.value, goal["metric"], examples)
    if target is not None:
        value = scoring.seconds_to(outcome.curve, target, goal["direction"])
        doubt = noise.score_error(outcome, goal, examples)
        # the score is one over a time
        error = value * doubt / record.score if value and doubt and record.score else None
    name = record.recipe.optimizer
    if name == "compiled":
        name = f"{own_optimizer}, the model's own" if own_optimizer else "the model's own"
    return BatchInfo(
        name,
        record.recipe.policy,
        record.recipe.batch_size,
        value,
        error,
        outcome.examples_per_second,
        record.baseline,
    )


def _search(records: Sequence[Record], goal: dict[str, Any]) -> PanelInfo:
    trials = [record for record in records if record.purpose == "search" and record.outcome.curve]
    best = max(trials, key=lambda record: record.score, default=None)
    baselines = [
        record for record in records if record.purpose == "baseline" and record.outcome.curve
    ]
    infos = [
        _curve(f"trial {record.trial}", OTHER, [record], goal)
        for record in trials
        if record is not best
    ]
    infos += [
        _curve(f"baseline: {record.recipe}", BASELINE, [record], goal) for record in baselines
    ]
    infos += [_curve(f"trial {best.trial}: {best.recipe}", BEST, [best], goal)] if best else []
    return PanelInfo("The search: each recipe once", tuple(infos))


def _confirmation(records: Sequence[Record], goal: dict[str, Any]) -> PanelInfo:
    best = best_of(records)
    infos = []
    for group in confirmed(records).values():
        measured = [record for record in group if record.outcome.curve]
        if not measured:
            continue
        if group[0].baseline:
            infos.append(_curve(f"baseline: {group[0].recipe}", BASELINE, measured, goal))
        elif best is not None and group[0].trial == best.trial:
            infos.append(_curve(f"trial {best.trial}: {best.recipe}", BEST, measured, goal))
        else:
            infos.append(
                _curve(
                    f"also confirmed, trial {group[0].trial}: {group[0].recipe}",
                    OTHER,
                    measured,
                    goal,
                )
            )
    infos.sort(key=lambda info: (OTHER, BASELINE, BEST).index(info.role))
    seeds = max((len(info.curves) for info in infos), default=0)
    title = (
        "The confirmation: 1 fresh seed each"
        if seeds == 1
        else f"The confirmation: {seeds} fresh seeds each (thin) and their mean"
    )
    return PanelInfo(title, tuple(infos))


def _curve(label: str, role: str, records: Sequence[Record], goal: dict[str, Any]) -> CurveInfo:
    kept = [
        (record.outcome.curve, scoring.held(record.outcome.curve, goal["direction"]))
        for record in records
    ]
    return CurveInfo(
        label,
        role,
        tuple(curve for curve, _ in kept),
        tuple(curve[held.index] for curve, held in kept if held),
    )


def band(points: Points, metric: str, examples: int) -> list[tuple[float, float, float]]:
    """Where a curve's measurements would lie 19 times out of 20: `(seconds, lower, upper)`; empty if that cannot be known."""
    errors = [noise.value_error(value, metric, examples) for _, value in points]
    if None in errors:
        return []
    return [
        (seconds, value - 2 * (error or 0.0), value + 2 * (error or 0.0))
        for (seconds, value), error in zip(points, errors, strict=True)
    ]


def sizes(infos: Sequence[BatchInfo]) -> list[int]:
    """The batch sizes of some points, each once."""
    return [size for size, _ in itertools.groupby(sorted(info.batch_size for info in infos))]
