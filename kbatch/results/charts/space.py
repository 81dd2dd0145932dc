"""The parallel view of the space: a line a trial, over the axes on which the trials differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt

from kbatch.canvas import BLUE, GREY, ORANGE, Chart, hit_areas, table, under_pointer
from kbatch.outcome import STOPPED
from kbatch.results.chart_data import SpaceAxis, SpaceInfo

HEIGHT = 300
AXIS_WIDTH = 105  # pixels from one axis to the next, at least
LONGEST = 16  # characters of a label
NOTHING = "Nothing was measured yet."


@dataclass(frozen=True)
class _Line:
    """One trial."""

    trial: int
    recipe: str
    score: float
    drawn: str
    order: tuple[int, ...]
    axis: tuple[str, ...]
    place: tuple[float, ...]


@dataclass(frozen=True)
class _Label:
    """A tick of an axis, or its name above it."""

    axis: str
    place: float
    text: str


def space_chart(info: SpaceInfo) -> Chart:
    """Return the parallel view of a space."""
    names = _names(info)
    x = _axes(names)
    y = alt.Y("place:Q", axis=None, scale=alt.Scale(domain=[-0.04, 1.04], nice=False))
    labels = alt.Chart(table(_labels(info, names))).encode(x=x, y=y)
    return Chart(
        "space",
        "What the trials drew, and what it scored",
        _note(info),
        _description(info),
        alt.layer(
            *_drawn(info, names, x, y),
            labels.mark_tick(orient="horizontal", width=9, thickness=1, color=GREY),
            labels.mark_text(align="left", dx=8, fontSize=11, fontWeight=600).encode(text="text:N"),
        ),
        height=HEIGHT,
        least_width=AXIS_WIDTH * max(len(names), 3),
    )


def _axes(names: list[str]) -> alt.X:
    """One vertical line an axis, with its name above it."""
    return alt.X(
        "axis:N",
        sort=names,
        title=None,
        scale=alt.Scale(domain=names, padding=0.5),
        axis=alt.Axis(
            labelAngle=0,
            orient="top",
            labelFontWeight="bold",
            labelLimit=AXIS_WIDTH - 5,
            domain=False,
            ticks=False,
            grid=True,
        ),
    )


def _drawn(info: SpaceInfo, names: list[str], x: alt.X, y: alt.Y) -> list[Any]:
    """The lines, the one under the pointer thicker."""
    under = under_pointer("under_space", "trial")
    base = alt.Chart(table(_lines(info, names))).transform_flatten(["order", "axis", "place"])
    colour = alt.Color(
        "score:Q",
        title="score per second",
        scale=alt.Scale(range=[BLUE, ORANGE], interpolate="lab"),
        legend=alt.Legend(orient="bottom", gradientLength=180),
    )
    tooltip = [
        alt.Tooltip("trial:N", title="trial"),
        alt.Tooltip("recipe:N", title="recipe"),
        alt.Tooltip("drawn:N", title="drawn"),
        alt.Tooltip("score:Q", title="score per second", format=",.4~g"),
    ]
    lines = base.mark_line(strokeJoin="round").encode(
        x=x,
        y=y,
        detail="trial:N",
        order=alt.Order("order:Q"),
        color=colour,
        strokeWidth=alt.condition(under, alt.value(4.5), alt.value(1.8)),
        opacity=alt.condition(under, alt.value(1), alt.value(0.75)),
    )
    areas = hit_areas(base, "axis", "place", "trial", "order").encode(
        x=x, y=y, x2="next_x:N", y2="next_y:Q", tooltip=tooltip
    )
    return [lines, areas.add_params(under)]


def _names(info: SpaceInfo) -> list[str]:
    """The names of the axes, each different from the others though they are cut."""
    names: list[str] = []
    for axis in info.axes:
        name = _cut(axis.name)
        names.append(name if name not in names else f"{len(names)}: {name}")
    return names


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _lines(info: SpaceInfo, names: list[str]) -> list[_Line]:
    return [
        _Line(
            record.trial,
            str(record.recipe),
            record.score,
            ", ".join(_words(axis, position) for axis in info.axes),
            tuple(range(len(names))),
            tuple(names),
            tuple(axis.places[position] for axis in info.axes),
        )
        for position, record in enumerate(info.records)
    ]


def _labels(info: SpaceInfo, names: list[str]) -> list[_Label]:
    labels: list[_Label] = []
    for name, axis in zip(names, info.axes, strict=True):
        labels += [_Label(name, tick.place, _cut(tick.text)) for tick in axis.ticks]
    return labels


def _note(info: SpaceInfo) -> str:
    if not info.records:
        return NOTHING
    note = "One line a trial, over the axes on which trials differ; orange scored high."
    if any(record.outcome.ended == STOPPED for record in info.records):
        note += " A trial that a rung stopped scored what it had secured by then."
    return note


def _description(info: SpaceInfo) -> str:
    """The values of the trial that scored highest in words."""
    if not info.records:
        return f"Parallel axes of the space. {NOTHING}"
    best = info.records[-1]
    drawn = ", ".join(_words(axis, -1) for axis in info.axes)
    return (
        f"{len(info.records)} trials over parallel axes. The highest single score is that of "
        f"trial {best.trial}: {drawn}."
    )


def _words(axis: SpaceAxis, position: int) -> str:
    return f"{axis.name} {axis.values[position]}"
