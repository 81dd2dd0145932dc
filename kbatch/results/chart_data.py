"""Chart data: the points and lines of the charts of a search, without a chart library."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from kbatch import outcome
from kbatch.axes import AXES
from kbatch.outcome import SCORED, STOPPED, Goal
from kbatch.records.store import BASELINE_TRIAL, Record
from kbatch.results import interval
from kbatch.results.claim import Mean, confirmed
from kbatch.results.words import SCORE, ended_text, own_values, score_text


@dataclass(frozen=True)
class BatchInfo:
    """One recipe as a point over its batch size."""

    trial: int  # -1 for the baseline
    recipe: str  # in words
    optimizer: str  # or words for the model's own
    policy: str
    augmentation: str
    kind: str  # what decides speed and memory besides the batch, in words
    batch_size: int
    seeds: int  # trainings that the point stands for; 1 for a training of the search
    score: float  # per second; the mean over the seeds
    score_error: float | None
    value: float | None  # the metric held; with a target, the seconds to it
    error: float | None  # of the value
    examples_per_second: float
    peak_bytes: int | None  # `None` if the device does not tell
    ended: str  # in words
    failed: bool  # by an error, NaN or a crash
    stopped: bool  # at a rung, so that it might have become better

    @property
    def baseline(self) -> bool:
        """Whether this is the baseline."""
        return self.trial == BASELINE_TRIAL

    @property
    def name(self) -> str:
        """The recipe's trial in words."""
        return "baseline" if self.baseline else f"trial {self.trial}"


def batch_infos(
    records: Sequence[Record], goal: Goal, examples: int, own_optimizer: str = ""
) -> list[BatchInfo]:
    """Return the trainings of a search, smallest batch first, those that failed among them."""
    infos = [
        _info([record], goal, examples, own_optimizer)
        for record in records
        if record.purpose in ("search", "baseline")
    ]
    return sorted(infos, key=lambda info: info.batch_size)


def confirmed_infos(
    records: Sequence[Record], goal: Goal, own_optimizer: str = ""
) -> list[BatchInfo]:
    """Return the confirmed recipes, each once with its means over the fresh seeds."""
    groups = confirmed(records).values()
    infos = [_info(group, goal, 0, own_optimizer) for group in groups]
    return sorted(infos, key=lambda info: info.batch_size)


def measured(infos: Sequence[BatchInfo]) -> list[BatchInfo]:
    """Return the points of the trainings that did not fail."""
    return [info for info in infos if not info.failed]


def sizes(infos: Sequence[BatchInfo]) -> list[int]:
    """Return the batch sizes of some points, each once, smallest first."""
    return sorted({info.batch_size for info in infos})


def _info(group: Sequence[Record], goal: Goal, examples: int, own_optimizer: str) -> BatchInfo:
    """The point of the trainings of one recipe: one of the search, or several fresh seeds."""
    record, recipe = group[0], group[0].recipe
    value, error = _value(group, goal, examples)
    score, score_error = _score(group, goal, examples)
    peaks = [each.outcome.peak_bytes for each in group if each.outcome.peak_bytes is not None]
    return BatchInfo(
        record.trial,
        str(recipe),
        _optimizer_words(recipe.optimizer, own_optimizer),
        recipe.policy,
        recipe.augmentation,
        _kind(record),
        recipe.batch_size,
        len(group),
        score,
        score_error,
        value,
        error,
        statistics.fmean(each.outcome.examples_per_second for each in group),
        max(peaks, default=None),
        ended_text(record.outcome),
        all(each.outcome.failed for each in group),
        any(each.outcome.ended == STOPPED for each in group),
    )


def _score(group: Sequence[Record], goal: Goal, examples: int) -> tuple[float, float | None]:
    """The score and its standard error: over the seeds, or of measuring."""
    if len(group) > 1:
        mean = Mean.of([record.score for record in group])
        return mean.mean, mean.error
    error = interval.score_error(group[0].outcome, goal, examples) if examples else None
    return group[0].score, error if group[0].outcome.ended in SCORED else None


def _value(group: Sequence[Record], goal: Goal, examples: int) -> tuple[float | None, float | None]:
    """The value held, or the seconds to the target, and its standard error."""
    values = [_one_value(record, goal) for record in group]
    known = [value for value in values if value is not None]
    if len(known) > 1:
        mean = Mean.of(known)
        return mean.mean, mean.error
    if not known or not examples:
        return (known[0] if known else None), None
    if goal.target is None:
        return known[0], interval.value_error(known[0], goal.metric, examples)
    return known[0], _seconds_error(group[0], known[0], goal, examples)


def _one_value(record: Record, goal: Goal) -> float | None:
    if goal.target is None:
        return record.outcome.value
    return outcome.seconds_to(record.outcome.curve, goal.target, goal.direction)


def _seconds_error(record: Record, seconds: float, goal: Goal, examples: int) -> float | None:
    """The standard error of the seconds to a target, from that of the score."""
    score_error = interval.score_error(record.outcome, goal, examples)
    if not (seconds and score_error and record.score):
        return None
    # With a target the score is proportional to one over the seconds: the relative errors agree.
    return seconds * score_error / record.score


def _optimizer_words(name: str, own_optimizer: str) -> str:
    if name != "compiled":
        return name
    return f"compiled ({own_optimizer})" if own_optimizer else name


def _kind(record: Record) -> str:
    recipe = record.recipe
    words = [recipe.policy]
    if recipe.jit_compile:
        words.append("XLA")
    if recipe.recompute != "none":
        words.append(f"recompute {recipe.recompute}")
    if recipe.training != "plain":
        words.append(recipe.training)
    return ", ".join(words)


Points = tuple[tuple[float, float], ...]
Band = list[tuple[float, float, float]]
BASELINE, BEST, OTHER = "baseline", "best", "other"
SEARCH, CONFIRMATION = "search", "confirmation"


@dataclass(frozen=True)
class CurveInfo:
    """The curves of one recipe's trainings."""

    label: str  # the recipe in words
    role: str
    curves: tuple[Points, ...]  # of each training
    held: Points  # whose values are held, one per training that held any

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
    """Curves that share their axes: those of the search, or those of its confirmation."""

    name: str
    title: str
    curves: tuple[CurveInfo, ...]  # the important ones last, so that they are drawn on top

    @property
    def seconds(self) -> float:
        """Training seconds of the longest training."""
        longest = 0.0
        for info in self.curves:
            longest = max([longest, *(curve[-1][0] for curve in info.curves)])
        return longest


MOST_LINES = 80  # trials whose curves are drawn: more are a grey area, and slow to draw
MOST_POINTS = 1000
T = TypeVar("T")


def panels(records: Sequence[Record], goal: Goal, best: Record | None) -> list[PanelInfo]:
    """Return the panels of the confirmation and of the search, without the empty ones."""
    both = (_confirmation_panel(records, goal, best), _search_panel(records, goal, best))
    return [panel for panel in both if panel.curves]


def band(points: Points, metric: str, examples: int) -> Band:
    """Return the 95 % band of a curve's measurements: `(seconds, lower, upper)`.

    Empty if the error of the metric cannot be known.
    """
    around = []
    for seconds, value in points:
        error = interval.value_error(value, metric, examples)
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
    others = [record for record in trials if record is not own]
    drawn = sample(others, MOST_LINES)
    infos = [
        _curve_info(f"trial {record.trial}: {record.recipe}", OTHER, [record], goal)
        for record in drawn
    ]
    for record in measured:
        if record.purpose == "baseline":
            infos.append(_curve_info(f"baseline: {record.recipe}", BASELINE, [record], goal))
    if own:
        infos.append(_curve_info(f"trial {own.trial}: {own.recipe}", BEST, [own], goal))
    title = "The search: each trial"
    if len(drawn) < len(others):
        title = f"The search: {len(drawn)} of its trials, evenly taken from {len(others):,}"
    return PanelInfo(SEARCH, title, tuple(infos))


def sample(items: Sequence[T], most: int) -> list[T]:
    """Return the items, or so many of them at even distances."""
    if len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]


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
        held = outcome.held(curve, goal.direction)
        if held:
            held_points.append(curve[held.index])
    return CurveInfo(label, role, curves, tuple(held_points))


LONGEST = 16  # characters of a label
FEW = 6  # an axis of at most so many values has a tick for each, evenly spaced
WIDE = 8.0  # times that the largest number is the smallest: from here on an axis is logarithmic
ABOVE_NOTHING = 0.15  # where numbers begin on an axis that some trials do not have
NOTHING = "-"


@dataclass(frozen=True)
class Tick:
    """One label of an axis: its place from 0 (below) to 1 (above), and its text."""

    place: float
    text: str


@dataclass(frozen=True)
class SpaceAxis:
    """One axis on which the trials differ."""

    name: str
    ticks: tuple[Tick, ...]
    places: tuple[float, ...]  # from 0 to 1, one a trial
    values: tuple[str, ...]  # one a trial


@dataclass(frozen=True)
class SpaceInfo:
    """The parallel view of a space."""

    records: tuple[Record, ...]  # one line each, lowest score first, so that the best is on top
    axes: tuple[SpaceAxis, ...]  # the last one is the score

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the axes, each different from the others though they are cut."""
        names: list[str] = []
        for axis in self.axes:
            name = _cut(axis.name)
            names.append(name if name not in names else f"{len(names)}: {name}")
        return names

    def drawn(self, position: int) -> str:
        """Return what a trial drew and scored, in words."""
        return ", ".join(f"{axis.name} {axis.values[position]}" for axis in self.axes)

    def lines(self) -> list[dict[str, Any]]:
        """Return the line of each trial."""
        return [
            {
                "trial": record.trial,
                "recipe": str(record.recipe),
                "score": record.score,
                "drawn": self.drawn(position),
                "order": list(range(len(self.axes))),
                "axis": self.names,
                "place": [axis.places[position] for axis in self.axes],
            }
            for position, record in enumerate(self.records)
        ]

    def labels(self) -> list[dict[str, Any]]:
        """Return the ticks of all axes."""
        return [
            {"axis": name, "place": tick.place, "text": _cut(tick.text)}
            for name, axis in zip(self.names, self.axes, strict=True)
            for tick in axis.ticks
        ]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def space_info(records: Sequence[Record]) -> SpaceInfo:
    """Return the axes on which the trials of a search differ, and their scores."""
    trials = [record for record in records if record.purpose == "search"]
    trials.sort(key=lambda record: record.score)
    columns: dict[str, list[Any]] = {
        axis.name.replace("_", " "): [getattr(record.recipe, axis.name) for record in trials]
        for axis in AXES
        if axis.in_recipe
    }
    for optimizer in dict.fromkeys(record.recipe.optimizer for record in trials):
        columns[f"{optimizer} rate"] = [
            record.recipe.learning_rate if record.recipe.optimizer == optimizer else None
            for record in trials
        ]
    own = [own_values(record) for record in trials]
    for name in dict.fromkeys(name for values in own for name in values):
        columns[str(name)] = [values.get(name) for values in own]
    different = [name for name, values in columns.items() if len(set(map(repr, values))) > 1]
    axes = [_axis(name, columns[name]) for name in different]
    scores = [record.score for record in trials]
    return SpaceInfo(tuple(trials), (*axes, _score_axis(scores)))


def _axis(name: str, values: Sequence[Any]) -> SpaceAxis:
    different = {repr(value): value for value in values}.values()
    known = [value for value in different if value is not None]
    if len(known) > FEW and all(map(_is_number, known)):
        return _number_axis(name, values)
    order = sorted(different, key=_order)
    place = {repr(value): position / max(len(order) - 1, 1) for position, value in enumerate(order)}
    return SpaceAxis(
        name,
        tuple(Tick(place[repr(value)], _text(value)) for value in order),
        tuple(place[repr(value)] for value in values),
        tuple(map(_text, values)),
    )


def _number_axis(name: str, values: Sequence[Any]) -> SpaceAxis:
    """The axis of numbers, below which stand the trials that have none."""
    known = [float(value) for value in values if value is not None]
    low, high = min(known), max(known)
    lowest = ABOVE_NOTHING if len(known) < len(values) else 0.0
    logarithmic = low > 0 and high >= WIDE * low
    middle = math.sqrt(low * high) if logarithmic else (low + high) / 2

    def place(value: float | None) -> float:
        if value is None:
            return 0.0
        share = (value - low) / (high - low)
        if logarithmic:
            share = math.log(value / low) / math.log(high / low)
        return lowest + (1 - lowest) * share

    nothing = (Tick(0.0, NOTHING),) * (lowest > 0)
    return SpaceAxis(
        name,
        (*nothing, *(Tick(place(value), _text(value)) for value in (low, middle, high))),
        tuple(map(place, values)),
        tuple(map(_text, values)),
    )


def _score_axis(scores: Sequence[float]) -> SpaceAxis:
    """The scores from 0 to the highest."""
    highest = max(scores, default=0.0) or 1.0
    ticks = tuple(Tick(share, score_text(share * highest, highest)) for share in (0.0, 0.5, 1.0))
    places = tuple(max(score, 0.0) / highest for score in scores)
    return SpaceAxis(SCORE, ticks, places, tuple(score_text(s, highest) for s in scores))


def _is_number(value: Any) -> bool:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and math.isfinite(value)


def _order(value: Any) -> tuple[int, float, str]:
    """Nothing first, then numbers by size, then words."""
    if value is None:
        return 0, 0.0, ""
    return (1, float(value), "") if _is_number(value) else (2, 0.0, str(value))


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
