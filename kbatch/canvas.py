"""The canvas: a chart with its words and colours, and the charts of plans, speeds and studies."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from kbatch.records import files

# Okabe & Ito 2008, told apart by the colour-blind; without their black and yellow, of which the
# one is not seen on a dark page and the other not on a light one.
ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#e69f00",
    "#56b4e9",
    "#009e73",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
)
GREY = "#8a8a8a"
GROUP_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)
OTHERS = "others"  # the group of those beyond the colours
LEGEND_WIDTH = 58  # characters of a line of a legend
DIGITS = 5
PNG_SCALE = 2.0
PNG_WIDTH, PNG_HEIGHT = 460, 320
# A legend below the chart, whose entries are not cut: a line break is in the text.
LEGEND = {
    "orient": "bottom",
    "direction": "vertical",
    "title": None,
    "labelLimit": 0,
    "labelExpr": "split(datum.label, '\\n')",
}
EMBED = "window.vegaEmbed = vegaEmbed;"
CONFIG = {
    "background": "white",
    "view": {"stroke": None},
    "axis": {"gridOpacity": 0.5, "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": 500},
    "legend": {
        "labelFontSize": 11,
        "layout": {"bottom": {"anchor": "start", "direction": "vertical", "offset": 8}},
    },
    "title": {"anchor": "start", "fontSize": 14, "subtitleFontSize": 11, "subtitlePadding": 4},
}


@dataclass(frozen=True)
class Chart:
    """One chart and its words.

    Attributes:
        name: String, made of letters, digits and hyphens.
        title: String.
        note: String, one or two sentences that explain the marks; may be empty.
        description: String, what is to be seen, for those who cannot see it.
        drawing: Chart of altair, without size and title.
        height: Integer, pixels.
        least_width: Integer, pixels below which the chart is scrolled instead of narrowed.
    """

    name: str
    title: str
    note: str
    description: str
    drawing: Any
    height: int = PNG_HEIGHT
    least_width: int = 0

    def spec(self) -> dict[str, Any]:
        """The chart in Vega-Lite, as wide as its place in the page."""
        sized = self.drawing.properties(
            width="container", height=self.height, description=self.description
        )
        spec: dict[str, Any] = sized.to_dict(validate=False)
        return {**spec, "autosize": {"type": "fit-x", "contains": "padding"}}


def table(rows: Iterable[Any]) -> alt.InlineData:
    """Return the data of a chart: a frozen dataclass a row; what is not finite becomes nothing.

    Rows are one text of JSON, since altair would check each of their values.
    """
    text = json.dumps([_row(row) for row in rows], separators=(",", ":"))
    return alt.InlineData(values=text, format=alt.JsonDataFormat(type="json"))


def _row(row: Any) -> dict[str, Any]:
    return {field.name: _value(getattr(row, field.name)) for field in dataclasses.fields(row)}


def _value(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_value(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def wrapped(text: str) -> str:
    """Return the text of a legend in lines that a telephone shows."""
    return "\n".join(textwrap.wrap(text, LEGEND_WIDTH)) or text


def under_pointer(name: str, field: str) -> alt.Parameter:
    """Return the selection of what is under the pointer."""
    return alt.selection_point(
        name=name, fields=[field], on="pointerover", clear="pointerout", empty=False
    )


def hit_areas(lines: alt.Chart, x: str, y: str, line: str, order: str) -> alt.Chart:
    """Return invisible bars along lines, since a line itself is only touched near its points."""
    return (
        lines.transform_window(
            next_x=f"lead({x})",
            next_y=f"lead({y})",
            groupby=[line],
            sort=[alt.SortField(order)],
        )
        .transform_filter("isValid(datum.next_x)")
        .mark_rule(strokeWidth=9, opacity=0, aria=False)
    )


def groups(names: Iterable[str]) -> list[str]:
    """Return different names in order, those beyond the number of colours as `OTHERS`."""
    found = sorted(set(names))
    if len(found) <= len(GROUP_COLOURS):
        return found
    return [*found[: len(GROUP_COLOURS) - 1], OTHERS]


def scale_of(names: Sequence[str], first: int = 0) -> alt.Scale:
    """Return the colours of groups."""
    places = [(first + place) % len(GROUP_COLOURS) for place in range(len(names))]
    return alt.Scale(domain=list(names), range=[GROUP_COLOURS[place] for place in places])


def batch_axis(sizes: Sequence[int]) -> alt.X:
    """Return the axis of batch sizes, with ticks at those that were trained."""
    low, high = (sizes[0], sizes[-1]) if sizes else (16, 64)
    return alt.X(
        "at:Q",
        title="batch size",
        scale=alt.Scale(type="log", base=2, domain=[low / 1.4, high * 1.4], nice=False),
        axis=alt.Axis(
            values=list(sizes), format="~d", grid=False, labelOverlap="greedy", labelSeparation=4
        ),
    )


def save(charts: Sequence[Chart], path: str | Path) -> None:
    """Write charts side by side to a PNG file, whole or not at all."""
    drawings = [
        chart.drawing.properties(
            width=PNG_WIDTH, height=chart.height, title=_title(chart), description=chart.description
        )
        for chart in charts
    ]
    drawn = alt.hconcat(*drawings, spacing=40).resolve_scale(
        color="independent", shape="independent"
    )
    files.write(Path(path), _png({**drawn.to_dict(validate=False), "config": CONFIG}))


def _title(chart: Chart) -> alt.TitleParams:
    lines = textwrap.wrap(chart.note, 80)
    return alt.TitleParams(textwrap.wrap(chart.title, 60), subtitle=lines)


def version() -> str:
    """Return the version of Vega-Lite that the charts are written for, such as `"6.4"`."""
    return ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def _png(spec: dict[str, Any]) -> bytes:
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(spec, vl_version=version(), scale=PNG_SCALE))


def script() -> str:
    """Return vega, vega-lite and vega-embed as one text of JavaScript, in seconds of work."""
    import vl_convert

    return str(vl_convert.javascript_bundle(EMBED, vl_version=version()))


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
