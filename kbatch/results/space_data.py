"""The space as trials drew from it: one line a trial over parallel axes, apart from the drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbatch.axes import AXES
from kbatch.records.store import Record
from kbatch.results.own_values import own_values
from kbatch.results.words import SCORE, score_text

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
    """One axis on which the trials differ.

    Attributes:
        name: String, in words.
        ticks: Tuple of `Tick`.
        places: Tuple of floats from 0 to 1, one a line.
        values: Tuple of texts, one a line.
    """

    name: str
    ticks: tuple[Tick, ...]
    places: tuple[float, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class SpaceInfo:
    """The parallel view of a space.

    Attributes:
        records: Tuple of the trials, one line each, lowest score first, so that the best is on top.
        axes: Tuple of `SpaceAxis`; the last one is the score.
    """

    records: tuple[Record, ...]
    axes: tuple[SpaceAxis, ...]


def space_info(records: Sequence[Record]) -> SpaceInfo:
    """Return the axes on which the trials of a search differ, and their scores.

    Args:
        records: All records of a search.
    """
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
