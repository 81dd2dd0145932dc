"""The charts over batch size: results, scores by group, speed and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from kbatch.canvas import (
    GREY,
    LEGEND,
    OTHERS,
    Chart,
    batch_axis,
    groups,
    save,
    scale_of,
    table,
)
from kbatch.outcome import Goal
from kbatch.results.chart_data import BatchInfo, measured

BASELINE, ONCE, CONFIRMED, FAILED = "baseline", "trained once", "mean of fresh seeds", "failed"
MISSED, CUT_SHORT = "target not held", "stopped at a rung"
SHAPES = {
    ONCE: "circle",
    BASELINE: "square",
    CONFIRMED: "diamond",
    FAILED: "cross",
    MISSED: "triangle-down",
    CUT_SHORT: "triangle-up",
}
SPREAD, STEP = 0.2, 0.12  # octaves, at most: from a batch size, and from group to group
ERRORS = "Bars: ± 2 standard errors, of measuring or over the seeds."
APART = "Groups at one batch size stand a little apart. Rates and other axes differ too."
CENSORED = "What a rung stopped is drawn as it was then: to the end it might have become better."
NOTHING = "Nothing was measured yet."
# The first colour of each chart: what two charts show in one colour is the same thing.
FIRST_COLOURS = {"score-policy": 3, "speed": 3, "memory": 3, "score-augmentation": 4}
BY = {"optimizer": "optimizer", "policy": "policy", "augmentation": "augmentation"}


@dataclass(frozen=True)
class _Point:
    """One recipe as it is drawn."""

    at: float
    batch: int
    group: str
    shape: str
    name: str
    recipe: str
    ended: str
    seeds: int
    y: float | None
    lower: float | None
    upper: float | None


def score_charts(
    infos: Sequence[BatchInfo], confirmations: Sequence[BatchInfo], goal: Goal
) -> list[Chart]:
    """Return the scores over batch size by optimizer, by policy and by augmentation.

    A chart is left out where all recipes are of one group, unless it would be the only one. There
    is none where all trainings failed.
    """
    everything = [*infos, *confirmations]
    charts: list[Chart] = []
    if not measured(everything):
        return charts
    for field, words in BY.items():
        names = [getattr(info, field) for info in everything]
        if len(set(names)) > 1 or field == "optimizer":
            rows = _rows(everything, names, "score")
            title = f"Score over batch size, by {words}"
            charts.append(_chart(f"score-{field}", title, "score per second", rows, goal))
    return charts


def cost_charts(infos: Sequence[BatchInfo], goal: Goal) -> list[Chart]:
    """Return examples per second over batch size, and the peak of memory where it is known."""
    ran = measured(infos)
    charts = [_speed_chart(ran, goal)] if ran else []
    told = [info for info in infos if info.peak_bytes is not None]
    if told:
        rows = _rows(told, [info.kind for info in told], "peak_bytes")
        title = "Peak memory over batch size"
        charts.append(_chart("memory", title, "peak memory (MB)", rows, goal))
    return charts


def draw_batches(infos: Sequence[BatchInfo], goal: Goal, path: str | Path) -> None:
    """Draw the results and the examples per second over the batch size into a PNG file."""
    ran = measured(infos)
    save([_result_chart(ran, goal), _speed_chart(ran, goal)], path)


def _result_chart(infos: Sequence[BatchInfo], goal: Goal) -> Chart:
    """The value held, or the seconds to the target, by optimizer."""
    rows = _rows(infos, [info.optimizer for info in infos], "value", goal.seconds)
    if goal.target is None:
        return _chart("results", f"{goal.metric} over batch size", goal.metric, rows, goal)
    axis = f"training seconds until {goal.metric} {goal.target:.4g} is held"
    return _chart("results", "Seconds to the target over batch size", axis, rows, goal)


def _speed_chart(infos: Sequence[BatchInfo], goal: Goal) -> Chart:
    rows = _rows(infos, [info.kind for info in infos], "examples_per_second")
    title = "Examples per second over batch size"
    return _chart("speed", title, "examples per second", rows, goal)


def _rows(
    infos: Sequence[BatchInfo], names: Sequence[str], field: str, missing: float | None = None
) -> list[_Point]:
    """The points of a chart, those of each group a little beside the others."""
    known = groups(names)
    each = [name if name in known else OTHERS for name in names]
    again = any(info.seeds > 1 for info in infos)
    # where there are confirmations, each group has a second place for them
    places = [
        known.index(group) * (1 + again) + (info.seeds > 1)
        for info, group in zip(infos, each, strict=True)
    ]
    middle = (len(known) * (1 + again) - 1) / 2
    step = min(STEP, SPREAD / max(middle, 1))
    return [
        _row(info, group, step * (place - middle), field, missing)
        for info, group, place in zip(infos, each, places, strict=True)
    ]


def _row(info: BatchInfo, group: str, octaves: float, field: str, missing: float | None) -> _Point:
    y, error = getattr(info, field), None
    if field in ("score", "value"):
        error = info.score_error if field == "score" else info.error
    if field == "peak_bytes":
        y = y / 1e6
    shape = _shape(info)
    if y is None:
        y, shape = missing, MISSED
    if info.stopped and field in ("score", "value"):
        shape = CUT_SHORT
    return _Point(
        info.batch_size * 2**octaves,
        info.batch_size,
        group,
        shape,
        info.name,
        info.recipe,
        info.ended,
        info.seeds,
        y,
        *_bar(y, error, field),
    )


def _bar(y: float | None, error: float | None, field: str) -> tuple[float | None, float | None]:
    """The ends of a bar; a score is never below 0, and a share neither that nor above 1."""
    if error is None or y is None:
        return None, None
    lower, upper = y - 2 * error, y + 2 * error
    is_share = field == "value" and 0 <= y <= 1
    return (max(lower, 0.0) if y >= 0 else lower), (min(upper, 1.0) if is_share else upper)


def _shape(info: BatchInfo) -> str:
    if info.failed:
        return FAILED
    if info.seeds > 1:
        return CONFIRMED
    return BASELINE if info.baseline else ONCE


def _chart(name: str, title: str, axis: str, rows: Sequence[_Point], goal: Goal) -> Chart:
    known = groups([row.group for row in rows])
    shapes = [shape for shape in SHAPES if any(row.shape == shape for row in rows)]
    x = batch_axis(sorted({row.batch for row in rows}))
    zero = name not in ("results",) or goal.target is not None
    row = {**LEGEND, "direction": "horizontal", "symbolFillColor": "transparent"}
    legend = alt.Legend(**row, columns=2, symbolOpacity=1) if rows else None
    colour = alt.Color("group:N", scale=scale_of(known, FIRST_COLOURS.get(name, 0)), legend=legend)
    base = alt.Chart(table(rows)).encode(x=x, color=colour)
    scale = alt.Scale(zero=zero) if rows else alt.Scale(domain=[0, 1])
    y = alt.Y("y:Q", title=axis, scale=scale)
    bars = (
        base.mark_rule(strokeWidth=1.2, opacity=0.7)
        .encode(y=alt.Y("lower:Q", title=axis, scale=scale), y2="upper:Q")
        .transform_filter("isValid(datum.lower)")
    )
    points = base.mark_point(size=70, strokeWidth=2, opacity=1).encode(
        y=y,
        shape=alt.Shape(
            "shape:N",
            scale=alt.Scale(domain=shapes, range=[SHAPES[shape] for shape in shapes]),
            legend=alt.Legend(**row, columns=2, symbolStrokeColor=GREY) if rows else None,
        ),
        tooltip=_tooltip(axis),
    )
    drawing = alt.layer(bars, points) if any(row.lower is not None for row in rows) else points
    return Chart(name, title, _note(rows, known), _description(rows, axis), drawing)


def _tooltip(axis: str) -> list[Any]:
    return [
        alt.Tooltip("name:N", title="trial"),
        alt.Tooltip("recipe:N", title="recipe"),
        alt.Tooltip("y:Q", title=axis, format=",.4~g"),
        alt.Tooltip("lower:Q", title="2 errors lower", format=",.4~g"),
        alt.Tooltip("upper:Q", title="2 errors higher", format=",.4~g"),
        alt.Tooltip("seeds:Q", title="trainings"),
        alt.Tooltip("ended:N", title="ended by"),
    ]


def _note(rows: Sequence[_Point], known: Sequence[str]) -> str:
    """What the marks mean, in sentences."""
    notes = [] if rows else [NOTHING]
    if any(row.lower is not None for row in rows):
        notes.append(ERRORS)
    if any(row.shape == CUT_SHORT for row in rows):
        notes.append(CENSORED)
    if len(known) > 1:
        notes.append(APART)
    return " ".join(notes)


def _description(rows: Sequence[_Point], axis: str) -> str:
    """The chart in words: its highest point."""
    known = [row for row in rows if row.y is not None]
    if not known:
        return f"{axis} over batch size. {NOTHING}"
    top = max(known, key=lambda row: row.y or 0.0)
    low = min(known, key=lambda row: row.y or 0.0)
    return (
        f"{axis} over batch size, {len(rows)} points at {len({row.batch for row in rows})} batch "
        f"sizes. Highest: {top.y:.4g} at batch {top.batch} ({top.name}). "
        f"Lowest: {low.y:.4g} at batch {low.batch} ({low.name})."
    )
