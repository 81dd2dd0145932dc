"""The charts of curves: the metric over training seconds, one line per training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from kbatch.canvas import (
    BLUE,
    GREEN,
    GREY,
    LEGEND,
    RED,
    Chart,
    hit_areas,
    save,
    table,
    under_pointer,
    wrapped,
)
from kbatch.outcome import Goal
from kbatch.results.chart_data import (
    BASELINE,
    BEST,
    OTHER,
    SEARCH,
    Band,
    CurveInfo,
    PanelInfo,
    band,
)

COLOURS = {BASELINE: BLUE, BEST: RED, OTHER: GREY}
SEEN = 0.45  # opacity of other lines, and how many of them may be so opaque
FAINT, FEW = 0.12, 40
STROKES = {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolOpacity": 1}
NOTHING = "Nothing was measured yet."


@dataclass(frozen=True)
class _Line:
    """One line: a training, or the mean of several."""

    line: int
    recipe: str
    label: str
    opacity: float
    width: float
    seconds: tuple[float, ...]
    value: tuple[float, ...]


@dataclass(frozen=True)
class _Bound:
    """One point of a band, or a level over the whole width."""

    label: str
    seconds: float
    lower: float
    upper: float


@dataclass(frozen=True)
class _Point:
    """One measurement, or a value held."""

    recipe: str
    label: str
    seconds: float
    value: float


def curve_charts(panels: Sequence[PanelInfo], goal: Goal, examples: int) -> list[Chart]:
    """Return a chart of the confirmation and one of the search, without the empty ones."""
    found = [_chart(panel, goal, examples) for panel in panels]
    return found or [_chart(PanelInfo(SEARCH, "The search: each trial", ()), goal, examples)]


def draw_curves(panels: Sequence[PanelInfo], goal: Goal, examples: int, path: str | Path) -> None:
    """Draw the charts of curves side by side into a PNG file."""
    save(curve_charts(panels, goal, examples), path)


def _chart(panel: PanelInfo, goal: Goal, examples: int) -> Chart:
    labels = _labels(panel)
    x = alt.X(
        "seconds:Q",
        title="training seconds",
        scale=alt.Scale(domain=[0, panel.seconds or goal.seconds], nice=False),
        axis=alt.Axis(labelOverlap="greedy", labelSeparation=8),
    )
    y = alt.Y("value:Q", title=goal.metric, scale=alt.Scale(zero=False))
    colour = alt.Color(
        "label:N",
        scale=alt.Scale(domain=list(labels.values()), range=[COLOURS[role] for role in labels]),
        legend=alt.Legend(**LEGEND, **STROKES) if labels else None,
    )
    return Chart(
        f"curves-{panel.name}",
        panel.title,
        _note(panel, goal, examples),
        _description(panel, goal),
        alt.layer(
            *_bands(panel, goal, examples, labels, x, colour),
            *_levels(goal, x),
            *_lines(panel, labels, x, y, colour),
            *_points(panel, labels, x, y, colour),
        ),
    )


def _labels(panel: PanelInfo) -> dict[str, str]:
    """The entry of the legend for each role, the best recipe first."""
    labels = {}
    for role in (BEST, BASELINE, OTHER):
        infos = [info for info in panel.curves if info.role == role]
        if len(infos) == 1:
            labels[role] = wrapped(infos[0].label)
        elif infos:
            kind = "trials" if panel.name == SEARCH else "recipes that were confirmed"
            labels[role] = f"{len(infos)} other {kind}"
    return labels


def _lines(panel: PanelInfo, labels: dict[str, str], x: Any, y: Any, colour: Any) -> list[Any]:
    """The lines, the one under the pointer in full colour."""
    rows = _line_rows(panel, labels)
    if not rows:
        return []
    under = under_pointer(f"under_{panel.name}", "recipe")
    base = alt.Chart(table(rows)).transform_flatten(["seconds", "value"])
    opacity = alt.condition(under, alt.value(1), alt.Opacity("opacity:Q", scale=None))
    width = alt.StrokeWidth("width:Q", scale=None, legend=None)
    lines = base.mark_line(strokeJoin="round").encode(
        x=x,
        y=y,
        color=colour,
        detail="line:N",
        opacity=opacity,
        strokeWidth=alt.condition(under, alt.value(3.2), width),
    )
    areas = hit_areas(base, "seconds", "value", "line", "seconds").encode(
        x=x, y=y, x2="next_x:Q", y2="next_y:Q", tooltip=alt.Tooltip("recipe:N", title="recipe")
    )
    return [lines, areas.add_params(under)]


def _line_rows(panel: PanelInfo, labels: dict[str, str]) -> list[_Line]:
    rows: list[_Line] = []
    faint = max(FAINT, SEEN * min(1, FEW / max(len(panel.curves), 1)))
    for info in panel.curves:
        label, opacity = labels[info.role], faint if info.role == OTHER else 1.0
        several = len(info.curves) > 1
        thin = [(curve, 0.5 * opacity, 0.8) for curve in info.curves if several]
        width = 1.2 + 0.6 * several if info.role == OTHER else 2.4
        for points, seen, thick in (*thin, (info.mean, opacity, width)):
            if points:
                seconds, values = zip(*points, strict=True)
                rows.append(_Line(len(rows), info.label, label, seen, thick, seconds, values))
    return rows


def _points(panel: PanelInfo, labels: dict[str, str], x: Any, y: Any, colour: Any) -> list[Any]:
    """The measurements of the important curves, and circles around the values held."""
    important = [info for info in panel.curves if info.role != OTHER]
    measured, held = [], []
    for info in important:
        label = labels[info.role]
        measured += [_Point(info.label, label, *point) for point in info.mean]
        held += [_Point(info.label, label, *point) for point in info.held]
    tooltip = [
        alt.Tooltip("recipe:N", title="recipe"),
        alt.Tooltip("seconds:Q", title="training seconds", format=".3~g"),
        alt.Tooltip("value:Q", title="value", format=".4~g"),
    ]
    return [
        alt.Chart(table(rows)).mark_point(**mark).encode(x=x, y=y, color=colour, tooltip=tooltip)
        for rows, mark in (
            (measured, {"filled": True, "size": 28, "opacity": 1}),
            (held, {"filled": False, "size": 130, "strokeWidth": 2, "opacity": 1}),
        )
        if rows
    ]


def _bands(
    panel: PanelInfo, goal: Goal, examples: int, labels: dict[str, str], x: Any, colour: Any
) -> list[Any]:
    rows: list[_Bound] = []
    for info in panel.curves:
        if info.role != OTHER:
            label = labels[info.role]
            rows += [_Bound(label, *bound) for bound in _band(info, goal, examples)]
    if not rows:
        return []
    lower = alt.Y("lower:Q", title=goal.metric)
    areas = alt.Chart(table(rows)).mark_area(opacity=0.14)
    return [areas.encode(x=x, y=lower, y2="upper:Q", color=colour, detail="label:N")]


def _band(info: CurveInfo, goal: Goal, examples: int) -> Band:
    """The band around a curve: the spread over its seeds, or the error of one measurement."""
    if len(info.curves) > 1:
        return info.spread
    return band(info.mean, goal.metric, examples)


def _levels(goal: Goal, x: Any) -> list[Any]:
    """Chance and, if there is one, the target as horizontal lines with their names."""
    rows = [_Point("", f"chance, {goal.chance:.4g}", 0.0, goal.chance)]
    if goal.target is not None:
        rows.append(_Point("", f"target, {goal.target:.4g}", 0.0, goal.target))
    base = alt.Chart(table(rows)).encode(y=alt.Y("value:Q", title=goal.metric))
    dashes = alt.condition(
        "indexof(datum.label, 'target') == 0", alt.value([6, 4]), alt.value([2, 3])
    )
    names = base.mark_text(align="right", baseline="bottom", dy=-2, fontSize=11)
    return [
        base.mark_rule(strokeWidth=1.3, color=GREEN).encode(strokeDash=dashes),
        names.encode(text="label:N", x=alt.value("width")),
        # invisible, so that there are seconds before anything was measured
        base.mark_point(opacity=0, size=0, tooltip=None).encode(x=x),
    ]


def _note(panel: PanelInfo, goal: Goal, examples: int) -> str:
    """What the marks mean, in sentences."""
    important = [info for info in panel.curves if info.role != OTHER]
    notes = [] if panel.curves else [NOTHING]
    if any(info.held for info in important):
        notes.append("Circles: the value held, which is the worst of three in a row.")
    if any(_band(info, goal, examples) for info in important):
        several = any(len(info.curves) > 1 for info in important)
        notes.append(
            "Bands: ± 1 standard deviation over the seeds."
            if several
            else f"Bands: ± 2 standard errors of one measurement ({examples:,} examples)."
        )
    return " ".join(notes)


def _description(panel: PanelInfo, goal: Goal) -> str:
    """The chart in words: where its important curves end."""
    ends = [
        f"{info.label} ends at {info.mean[-1][1]:.3f} after {info.mean[-1][0]:.3g} seconds"
        for info in panel.curves
        if info.role != OTHER and info.mean
    ]
    words = "; ".join(reversed(ends)) or NOTHING
    lines = f"{len(panel.curves)} recipes"
    return f"{goal.metric} over training seconds, {lines}. Chance is {goal.chance:.4g}. {words}."
