"""Charts of plans, throughput and studies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from kbatch.results.charts.canvas import (
    BLUE,
    GREEN,
    GREY,
    GROUP_COLOURS,
    RED,
    Chart,
    batch_axis,
    save,
    table,
)

# A limit above so many times the highest peak would press all points to the ground. It is not
# drawn then, and stands in the note only. Chosen by hand, not tuned.
FAR = 3
LEAST_EXTRA = 5  # per cent: the time axis shows at least as much
TIME = "more time than a plain step, predicted (%)"
PEAK = "peak in addition to weights and optimizer (MB)"


@dataclass(frozen=True)
class PlanInfo:
    """One point of the recompute chart.

    Attributes:
        name: String, the plan.
        peak_bytes: Float, not counting weights and optimizer.
        extra: Float, extra time as a share of a plain step's.
    """

    name: str
    peak_bytes: float
    extra: float


@dataclass(frozen=True)
class _Point:
    """A plan in the units of the chart."""

    name: str
    percent: float
    megabytes: float


def plan_chart(infos: Sequence[PlanInfo], title: str, room_bytes: float | None = None) -> Chart:
    """Return the chart of the peak of each plan over the time that it costs."""
    rows = [_Point(info.name, 100 * info.extra, info.peak_bytes / 1e6) for info in infos]
    room = (room_bytes or 0.0) / 1e6
    highest, longest = max(row.megabytes for row in rows), max(row.percent for row in rows)
    drawn = [_Point("", 0.0, room)] if 0 < room < FAR * highest else []
    top = 1.15 * max(highest, room if drawn else 0.0)
    # the names stand to the right of their points
    right = max(LEAST_EXTRA, 1.22 * longest)
    x = alt.X("percent:Q", title=TIME, scale=alt.Scale(domain=[-right / 40, right], nice=False))
    y = alt.Y("megabytes:Q", title=PEAK, scale=alt.Scale(domain=[0, top], nice=False))
    base = alt.Chart(table(rows)).encode(x=x, y=y)
    limit: Any = alt.Chart(table(drawn)).mark_rule(color=GREEN, strokeDash=[6, 4])
    return Chart(
        "plans",
        title,
        f"Dashed: what the limit leaves, {room:,.0f} MB." if room > 0 else "",
        f"{PEAK} of {len(rows)} plans over {TIME}, from {rows[0].name} to {rows[-1].name}.",
        alt.layer(
            base.mark_line(interpolate="step-after", color=GREY),
            base.mark_point(filled=True, size=60, color=BLUE, opacity=1),
            base.mark_text(align="left", baseline="bottom", dx=6, dy=-3).encode(text="name:N"),
            limit.encode(y=y),
        ),
    )


def draw_plans(
    infos: Sequence[PlanInfo], title: str, path: str | Path, room_bytes: float | None = None
) -> None:
    """Draw the peak of each plan over the time that it costs into a PNG file."""
    save([plan_chart(infos, title, room_bytes)], path)


@dataclass(frozen=True)
class SpeedInfo:
    """One point of the throughput chart.

    Attributes:
        at: Integer, the batch size.
        examples_per_second: Float, measured.
        fitted: Float, the examples per second of the fitted line at this batch size, or `None`
            if no line was fitted.
    """

    at: int
    examples_per_second: float
    fitted: float | None


def speed_infos(
    measured: Iterable[tuple[int, float]], fitted: Callable[[int], float] | None
) -> list[SpeedInfo]:
    """Return the points of a throughput chart."""
    return [
        SpeedInfo(batch_size, speed, fitted(batch_size) if fitted else None)
        for batch_size, speed in measured
    ]


def throughput_chart(infos: Sequence[SpeedInfo], smallest_fast: int) -> Chart:
    """Return the chart of examples per second over batch sizes."""
    axis = "examples per second"
    x, y = batch_axis([info.at for info in infos]), alt.Y("examples_per_second:Q", title=axis)
    base = alt.Chart(table(infos)).encode(x=x)
    line = base.mark_line(color=BLUE).encode(y=alt.Y("fitted:Q", title=axis))
    points = base.mark_point(filled=True, size=60, color=RED, opacity=1).encode(y=y)
    fast = alt.Chart(table([SpeedInfo(smallest_fast, 0.0, None)])).encode(x=x)
    notes = ["Points: the median of steady steps."]
    if any(info.fitted is not None for info in infos):
        notes.append("Line, fitted: a fixed time a step, and a time per example.")
    notes.append(f"Dotted: within 5 % of the best from {smallest_fast}.")
    best = max((info.examples_per_second for info in infos), default=0.0)
    return Chart(
        "throughput",
        "What a larger batch buys in speed",
        " ".join(notes),
        f"{axis} over batch size: at most {best:.4g}, nearly so from batch {smallest_fast}.",
        alt.layer(fast.mark_rule(strokeDash=[2, 3], color=GREY), line, points),
    )


def draw_throughput(infos: Sequence[SpeedInfo], smallest_fast: int, path: str | Path) -> None:
    """Draw examples per second over batch sizes into a PNG file."""
    save([throughput_chart(infos, smallest_fast)], path)


SHAPES = ("circle", "square", "triangle-up")  # of each run through the colours


@dataclass(frozen=True)
class GroupPoint:
    """One point of the chart: the mean over the seeds of a group at a batch size.

    Attributes:
        group: String, the line that it belongs to.
        at: Integer, the batch size.
        mean: Float.
        low: Float, the mean less its standard error.
        high: Float, the mean and its standard error.
        seeds: Integer, how many values the mean is of.
    """

    group: str
    at: int
    mean: float
    low: float
    high: float
    seeds: int


def group_points(frame: pd.DataFrame, column: str) -> list[GroupPoint]:
    """Return the points of a column, without those that have no value."""
    points = []
    for (group, size), own in frame.groupby(["group", "batch_size"], sort=False):
        known = own[column].dropna().astype(float)
        if known.empty:
            continue
        mean = float(known.mean())
        error = float(known.std()) / math.sqrt(len(known)) if len(known) > 1 else 0.0
        points.append(
            GroupPoint(str(group), int(str(size)), mean, mean - error, mean + error, len(known))
        )
    return points


def span_of(points: Sequence[GroupPoint]) -> tuple[float, float]:
    """Return the least and the greatest value of some points, with their standard errors."""
    low, high = min(point.low for point in points), max(point.high for point in points)
    if low < high:
        return low, high
    room = 0.1 * abs(low) or 0.1  # Vega labels an axis of one value wrongly
    return low - room, high + room


def group_chart(
    points: Sequence[GroupPoint], name: str, title: str, axis: str, span: tuple[float, float]
) -> Chart:
    """Return the chart of means over batch size."""
    names = list(dict.fromkeys(point.group for point in points))
    rounds = [divmod(index, len(GROUP_COLOURS)) for index in range(len(names))]
    colours = alt.Scale(domain=names, range=[GROUP_COLOURS[place] for _, place in rounds])
    shapes = alt.Scale(domain=names, range=[SHAPES[turn % len(SHAPES)] for turn, _ in rounds])
    sizes = sorted({point.at for point in points})
    base = alt.Chart(table(points)).encode(
        x=batch_axis(sizes),
        color=alt.Color("group:N", scale=colours, legend=alt.Legend(title=None)),
    )
    scale = alt.Scale(zero=False, domain=list(span), nice=True)
    value = alt.Y("mean:Q", title=axis, scale=scale)
    tips = ["group:N", alt.Tooltip("at:Q", title="batch size"), alt.Tooltip("mean:Q"), "seeds:Q"]
    bars = base.mark_rule(strokeWidth=1.5).encode(
        y=alt.Y("low:Q", title=axis, scale=scale), y2="high:Q"
    )
    points_drawn = base.mark_point(filled=True, size=60, opacity=1).encode(
        y=value,
        shape=alt.Shape("group:N", scale=shapes, legend=alt.Legend(title=None)),
        tooltip=tips,
    )
    return Chart(
        name,
        title,
        "Points: means over the seeds. Bars: one standard error either way.",
        f"{axis} over batch size for {', '.join(names) or 'no group'}.",
        alt.layer(base.mark_line().encode(y=value), bars, points_drawn),
    )
