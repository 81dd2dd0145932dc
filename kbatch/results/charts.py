"""The charts of a search: curves, results over batch size, and the parallel view of its space."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from kbatch.canvas import (
    BLUE,
    GREEN,
    GREY,
    LEGEND,
    ORANGE,
    OTHERS,
    RED,
    Chart,
    Row,
    batch_axis,
    groups,
    hit_areas,
    save,
    scale_of,
    table,
    under_pointer,
    wrapped,
)
from kbatch.outcome import STOPPED, Goal
from kbatch.results.chart_data import (
    BASELINE,
    BEST,
    OTHER,
    SEARCH,
    Band,
    BatchInfo,
    CurveInfo,
    PanelInfo,
    SpaceInfo,
    band,
    measured,
)

COLOURS = {BASELINE: BLUE, BEST: RED, OTHER: GREY}
SEEN = 0.45  # opacity of other lines, and how many of them may be so opaque
FAINT, FEW_LINES = 0.12, 40
STROKES = {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolOpacity": 1}
NOTHING = "Nothing was measured yet."


def curve_charts(panels: Sequence[PanelInfo], goal: Goal, examples: int) -> list[Chart]:
    """Return a chart of the confirmation and one of the search, without the empty ones."""
    found = [_curve_chart(panel, goal, examples) for panel in panels]
    return found or [_curve_chart(PanelInfo(SEARCH, "The search: each trial", ()), goal, examples)]


def draw_curves(panels: Sequence[PanelInfo], goal: Goal, examples: int, path: str | Path) -> None:
    """Draw the charts of curves side by side into a PNG file."""
    save(curve_charts(panels, goal, examples), path)


def _curve_chart(panel: PanelInfo, goal: Goal, examples: int) -> Chart:
    labels = _legend(panel)
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
        _curve_note(panel, goal, examples),
        _curve_description(panel, goal),
        alt.layer(
            *_curve_bands(panel, goal, examples, labels, x, colour),
            *_curve_levels(goal, x),
            *_curve_lines(panel, labels, x, y, colour),
            *_curve_points(panel, labels, x, y, colour),
        ),
    )


def _legend(panel: PanelInfo) -> dict[str, str]:
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


def _curve_lines(
    panel: PanelInfo, labels: dict[str, str], x: Any, y: Any, colour: Any
) -> list[Any]:
    """The lines, the one under the pointer in full colour."""
    rows = _curve_rows(panel, labels)
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


def _curve_rows(panel: PanelInfo, labels: dict[str, str]) -> list[Row]:
    rows: list[Row] = []
    faint = max(FAINT, SEEN * min(1, FEW_LINES / max(len(panel.curves), 1)))
    for info in panel.curves:
        label, opacity = labels[info.role], faint if info.role == OTHER else 1.0
        several = len(info.curves) > 1
        thin = [(curve, 0.5 * opacity, 0.8) for curve in info.curves if several]
        width = 1.2 + 0.6 * several if info.role == OTHER else 2.4
        for points, seen, thick in (*thin, (info.mean, opacity, width)):
            if points:
                seconds, values = zip(*points, strict=True)
                rows.append(
                    {
                        "line": len(rows),
                        "recipe": info.label,
                        "label": label,
                        "opacity": seen,
                        "width": thick,
                        "seconds": seconds,
                        "value": values,
                    }
                )
    return rows


def _curve_points(
    panel: PanelInfo, labels: dict[str, str], x: Any, y: Any, colour: Any
) -> list[Any]:
    """The measurements of the important curves, and circles around the values held."""
    important = [info for info in panel.curves if info.role != OTHER]
    measured, held = [], []
    for info in important:
        label = labels[info.role]
        measured += [_measurement(info.label, label, *point) for point in info.mean]
        held += [_measurement(info.label, label, *point) for point in info.held]
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


def _measurement(recipe: str, label: str, seconds: float, value: float) -> Row:
    return {"recipe": recipe, "label": label, "seconds": seconds, "value": value}


def _curve_bands(
    panel: PanelInfo, goal: Goal, examples: int, labels: dict[str, str], x: Any, colour: Any
) -> list[Any]:
    rows: list[Row] = []
    for info in panel.curves:
        if info.role != OTHER:
            label = labels[info.role]
            rows += [
                {"label": label, "seconds": seconds, "lower": lower, "upper": upper}
                for seconds, lower, upper in _curve_band(info, goal, examples)
            ]
    if not rows:
        return []
    lower = alt.Y("lower:Q", title=goal.metric)
    areas = alt.Chart(table(rows)).mark_area(opacity=0.14)
    return [areas.encode(x=x, y=lower, y2="upper:Q", color=colour, detail="label:N")]


def _curve_band(info: CurveInfo, goal: Goal, examples: int) -> Band:
    """The band around a curve: the spread over its seeds, or the error of one measurement."""
    if len(info.curves) > 1:
        return info.spread
    return band(info.mean, goal.metric, examples)


def _curve_levels(goal: Goal, x: Any) -> list[Any]:
    """Chance and, if there is one, the target as horizontal lines with their names."""
    rows = [_measurement("", f"chance, {goal.chance:.4g}", 0.0, goal.chance)]
    if goal.target is not None:
        rows.append(_measurement("", f"target, {goal.target:.4g}", 0.0, goal.target))
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


def _curve_note(panel: PanelInfo, goal: Goal, examples: int) -> str:
    """What the marks mean, in sentences."""
    important = [info for info in panel.curves if info.role != OTHER]
    notes = [] if panel.curves else [NOTHING]
    if any(info.held for info in important):
        notes.append("Circles: the value held, which is the worst of three in a row.")
    if any(_curve_band(info, goal, examples) for info in important):
        several = any(len(info.curves) > 1 for info in important)
        notes.append(
            "Bands: ± 1 standard deviation over the seeds."
            if several
            else f"Bands: ± 2 standard errors of one measurement ({examples:,} examples)."
        )
    return " ".join(notes)


def _curve_description(panel: PanelInfo, goal: Goal) -> str:
    """The chart in words: where its important curves end."""
    ends = [
        f"{info.label} ends at {info.mean[-1][1]:.3f} after {info.mean[-1][0]:.3g} seconds"
        for info in panel.curves
        if info.role != OTHER and info.mean
    ]
    words = "; ".join(reversed(ends)) or NOTHING
    lines = f"{len(panel.curves)} recipes"
    return f"{goal.metric} over training seconds, {lines}. Chance is {goal.chance:.4g}. {words}."


ONCE, CONFIRMED, FAILED = "trained once", "mean of fresh seeds", "failed"
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
# The first colour of each chart: what two charts show in one colour is the same thing.
FIRST_COLOURS = {"score-policy": 3, "speed": 3, "memory": 3, "score-augmentation": 4}


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
    for field in ("optimizer", "policy", "augmentation"):
        names = [getattr(info, field) for info in everything]
        if len(set(names)) > 1 or field == "optimizer":
            rows = _batch_rows(everything, names, "score")
            title = f"Score over batch size, by {field}"
            charts.append(_batch_chart(f"score-{field}", title, "score per second", rows, goal))
    return charts


def cost_charts(infos: Sequence[BatchInfo], goal: Goal) -> list[Chart]:
    """Return examples per second over batch size, and the peak of memory where it is known."""
    ran = measured(infos)
    charts = [_speed_chart(ran, goal)] if ran else []
    told = [info for info in infos if info.peak_bytes is not None]
    if told:
        rows = _batch_rows(told, [info.kind for info in told], "peak_bytes")
        title = "Peak memory over batch size"
        charts.append(_batch_chart("memory", title, "peak memory (MB)", rows, goal))
    return charts


def draw_batches(infos: Sequence[BatchInfo], goal: Goal, path: str | Path) -> None:
    """Draw the results and the examples per second over the batch size into a PNG file."""
    ran = measured(infos)
    save([_result_chart(ran, goal), _speed_chart(ran, goal)], path)


def _result_chart(infos: Sequence[BatchInfo], goal: Goal) -> Chart:
    """The value held, or the seconds to the target, by optimizer."""
    rows = _batch_rows(infos, [info.optimizer for info in infos], "value", goal.seconds)
    if goal.target is None:
        return _batch_chart("results", f"{goal.metric} over batch size", goal.metric, rows, goal)
    axis = f"training seconds until {goal.metric} {goal.target:.4g} is held"
    return _batch_chart("results", "Seconds to the target over batch size", axis, rows, goal)


def _speed_chart(infos: Sequence[BatchInfo], goal: Goal) -> Chart:
    rows = _batch_rows(infos, [info.kind for info in infos], "examples_per_second")
    title = "Examples per second over batch size"
    return _batch_chart("speed", title, "examples per second", rows, goal)


def _batch_rows(
    infos: Sequence[BatchInfo], names: Sequence[str], field: str, missing: float | None = None
) -> list[Row]:
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
        _batch_row(info, group, step * (place - middle), field, missing)
        for info, group, place in zip(infos, each, places, strict=True)
    ]


def _batch_row(
    info: BatchInfo, group: str, octaves: float, field: str, missing: float | None
) -> Row:
    y, error = getattr(info, field), None
    if field in ("score", "value"):
        error = info.score_error if field == "score" else info.error
    if field == "peak_bytes":
        y = y / 1e6
    shape = _batch_shape(info)
    if y is None:
        y, shape = missing, MISSED
    if info.stopped and field in ("score", "value"):
        shape = CUT_SHORT
    lower, upper = _bar(y, error, field)
    return {
        "at": info.batch_size * 2**octaves,
        "batch": info.batch_size,
        "group": group,
        "shape": shape,
        "name": info.name,
        "recipe": info.recipe,
        "ended": info.ended,
        "seeds": info.seeds,
        "y": y,
        "lower": lower,
        "upper": upper,
    }


def _bar(y: float | None, error: float | None, field: str) -> tuple[float | None, float | None]:
    """The ends of a bar; a score is never below 0, and a share neither that nor above 1."""
    if error is None or y is None:
        return None, None
    lower, upper = y - 2 * error, y + 2 * error
    is_share = field == "value" and 0 <= y <= 1
    return (max(lower, 0.0) if y >= 0 else lower), (min(upper, 1.0) if is_share else upper)


def _batch_shape(info: BatchInfo) -> str:
    if info.failed:
        return FAILED
    if info.seeds > 1:
        return CONFIRMED
    return BASELINE if info.baseline else ONCE


def _batch_chart(name: str, title: str, axis: str, rows: Sequence[Row], goal: Goal) -> Chart:
    known = groups([row["group"] for row in rows])
    shapes = [shape for shape in SHAPES if any(row["shape"] == shape for row in rows)]
    x = batch_axis(sorted({row["batch"] for row in rows}))
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
        tooltip=_batch_tooltip(axis),
    )
    drawing = alt.layer(bars, points) if any(row["lower"] is not None for row in rows) else points
    return Chart(name, title, _batch_note(rows, known), _batch_description(rows, axis), drawing)


def _batch_tooltip(axis: str) -> list[Any]:
    return [
        alt.Tooltip("name:N", title="trial"),
        alt.Tooltip("recipe:N", title="recipe"),
        alt.Tooltip("y:Q", title=axis, format=",.4~g"),
        alt.Tooltip("lower:Q", title="2 errors lower", format=",.4~g"),
        alt.Tooltip("upper:Q", title="2 errors higher", format=",.4~g"),
        alt.Tooltip("seeds:Q", title="trainings"),
        alt.Tooltip("ended:N", title="ended by"),
    ]


def _batch_note(rows: Sequence[Row], known: Sequence[str]) -> str:
    """What the marks mean, in sentences."""
    notes = [] if rows else [NOTHING]
    if any(row["lower"] is not None for row in rows):
        notes.append(ERRORS)
    if any(row["shape"] == CUT_SHORT for row in rows):
        notes.append(CENSORED)
    if len(known) > 1:
        notes.append(APART)
    return " ".join(notes)


def _batch_description(rows: Sequence[Row], axis: str) -> str:
    """The chart in words: its highest point."""
    known = [row for row in rows if row["y"] is not None]
    if not known:
        return f"{axis} over batch size. {NOTHING}"
    top = max(known, key=lambda row: row["y"] or 0.0)
    low = min(known, key=lambda row: row["y"] or 0.0)
    sizes = len({row["batch"] for row in rows})
    return (
        f"{axis} over batch size, {len(rows)} points at {sizes} batch sizes. "
        f"Highest: {top['y']:.4g} at batch {top['batch']} ({top['name']}). "
        f"Lowest: {low['y']:.4g} at batch {low['batch']} ({low['name']})."
    )


HEIGHT = 300
AXIS_WIDTH = 105  # pixels from one axis to the next, at least


def space_chart(info: SpaceInfo) -> Chart:
    """Return the parallel view of a space."""
    x = _space_x(info.names)
    y = alt.Y("place:Q", axis=None, scale=alt.Scale(domain=[-0.04, 1.04], nice=False))
    labels = alt.Chart(table(info.labels())).encode(x=x, y=y)
    return Chart(
        "space",
        "What the trials drew, and what it scored",
        _space_note(info),
        _space_description(info),
        alt.layer(
            *_drawn_lines(info, x, y),
            labels.mark_tick(orient="horizontal", width=9, thickness=1, color=GREY),
            labels.mark_text(align="left", dx=8, fontSize=11, fontWeight=600).encode(text="text:N"),
        ),
        height=HEIGHT,
        least_width=AXIS_WIDTH * max(len(info.names), 3),
    )


def _space_x(names: list[str]) -> alt.X:
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


def _drawn_lines(info: SpaceInfo, x: alt.X, y: alt.Y) -> list[Any]:
    """The lines, the one under the pointer thicker."""
    under = under_pointer("under_space", "trial")
    base = alt.Chart(table(info.lines())).transform_flatten(["order", "axis", "place"])
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


def _space_note(info: SpaceInfo) -> str:
    if not info.records:
        return NOTHING
    note = "One line a trial, over the axes on which trials differ; orange scored high."
    if any(record.outcome.ended == STOPPED for record in info.records):
        note += " A trial that a rung stopped scored what it had secured by then."
    return note


def _space_description(info: SpaceInfo) -> str:
    """The values of the trial that scored highest in words."""
    if not info.records:
        return f"Parallel axes of the space. {NOTHING}"
    best = info.records[-1]
    return (
        f"{len(info.records)} trials over parallel axes. The highest single score is that of "
        f"trial {best.trial}: {info.drawn(-1)}."
    )
