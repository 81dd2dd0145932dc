"""The chart of a study: means over batch size, a line for each group, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import pandas as pd

from kbatch.results.charts.canvas import GROUP_COLOURS, Chart, batch_axis, table

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
    """Return the points of a column, without those that have no value.

    Args:
        frame: A row for each cell, with the columns `group` and `batch_size`.
        column: String, the column that is drawn.
    """
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
    """Return the least and the greatest value of some points, with their standard errors.

    Args:
        points: Points of `group_points`, at least one.
    """
    low, high = min(point.low for point in points), max(point.high for point in points)
    if low < high:
        return low, high
    room = 0.1 * abs(low) or 0.1  # Vega labels an axis of one value wrongly
    return low - room, high + room


def group_chart(
    points: Sequence[GroupPoint], name: str, title: str, axis: str, span: tuple[float, float]
) -> Chart:
    """Return the chart of means over batch size.

    Args:
        points: Points of `group_points`.
        name: String, the name of the chart's file.
        title: String.
        axis: String, title of the vertical axis, with its unit.
        span: Tuple of the least and the greatest value on the vertical axis. It is that of all
            charts side by side, so that noise in one does not look like an effect in another.
    """
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
