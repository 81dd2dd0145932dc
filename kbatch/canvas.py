"""The canvas: a chart with its words and colours, and the charts of plans, speeds and studies."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """One chart and its words."""

    name: str  # made of letters, digits and hyphens
    title: str
    note: str  # one or two sentences that explain the marks; may be empty
    description: str  # what is to be seen, for those who cannot see it
    drawing: Any  # a chart of altair, without size and title
    height: int = PNG_HEIGHT  # pixels
    least_width: int = 0  # pixels below which the chart is scrolled instead of narrowed

    def spec(self) -> dict[str, Any]:
        """The chart in Vega-Lite, as wide as its place in the page."""
        sized = self.drawing.properties(
            width="container", height=self.height, description=self.description
        )
        spec: dict[str, Any] = sized.to_dict(validate=False)
        return {**spec, "autosize": {"type": "fit-x", "contains": "padding"}}


Row = dict[str, Any]  # one mark of a chart: its values by the names of their fields


def table(rows: Iterable[Mapping[Any, Any]]) -> alt.InlineData:
    """Return the data of a chart; what is not finite becomes nothing.

    Rows are one text of JSON, since altair would check each of their values.
    """
    text = json.dumps([_value(row) for row in rows], separators=(",", ":"))
    return alt.InlineData(values=text, format=alt.JsonDataFormat(type="json"))


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _value(each) for name, each in value.items()}
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
    """A plan: its peak without weights and optimizer, and its extra time as a share of a step."""

    name: str
    peak_bytes: float
    extra: float


def plan_chart(infos: Sequence[PlanInfo], title: str, room_bytes: float | None = None) -> Chart:
    """Return the chart of the peak of each plan over the time that it costs."""
    rows = [_plan(info.name, 100 * info.extra, info.peak_bytes / 1e6) for info in infos]
    room = (room_bytes or 0.0) / 1e6
    highest, longest = (max(row[name] for row in rows) for name in ("megabytes", "percent"))
    drawn = [_plan("", 0.0, room)] if 0 < room < FAR * highest else []
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
        f"{PEAK} of {len(rows)} plans over {TIME}, from {infos[0].name} to {infos[-1].name}.",
        alt.layer(
            base.mark_line(interpolate="step-after", color=GREY),
            base.mark_point(filled=True, size=60, color=BLUE, opacity=1),
            base.mark_text(align="left", baseline="bottom", dx=6, dy=-3).encode(text="name:N"),
            limit.encode(y=y),
        ),
    )


def _plan(name: str, percent: float, megabytes: float) -> Row:
    return {"name": name, "percent": percent, "megabytes": megabytes}


def draw_plans(
    infos: Sequence[PlanInfo], title: str, path: str | Path, room_bytes: float | None = None
) -> None:
    """Draw the peak of each plan over the time that it costs into a PNG file."""
    save([plan_chart(infos, title, room_bytes)], path)


def speed_rows(
    measured: Iterable[tuple[int, float]], fitted: Callable[[int], float] | None
) -> list[Row]:
    """Return the points of a throughput chart, with the speed of the fitted line at each size."""
    return [_speed(size, speed, fitted(size) if fitted else None) for size, speed in measured]


def _speed(size: int, speed: float, fitted: float | None) -> Row:
    return {"at": size, "examples_per_second": speed, "fitted": fitted}


def throughput_chart(rows: Sequence[Row], smallest_fast: int) -> Chart:
    """Return the chart of examples per second over batch sizes."""
    axis = "examples per second"
    x = batch_axis([row["at"] for row in rows])
    y = alt.Y("examples_per_second:Q", title=axis)
    base = alt.Chart(table(rows)).encode(x=x)
    line = base.mark_line(color=BLUE).encode(y=alt.Y("fitted:Q", title=axis))
    points = base.mark_point(filled=True, size=60, color=RED, opacity=1).encode(y=y)
    fast = alt.Chart(table([_speed(smallest_fast, 0.0, None)])).encode(x=x)
    notes = ["Points: the median of steady steps."]
    if any(row["fitted"] is not None for row in rows):
        notes.append("Line, fitted: a fixed time a step, and a time per example.")
    notes.append(f"Dotted: within 5 % of the best from {smallest_fast}.")
    best = max((row["examples_per_second"] for row in rows), default=0.0)
    return Chart(
        "throughput",
        "What a larger batch buys in speed",
        " ".join(notes),
        f"{axis} over batch size: at most {best:.4g}, nearly so from batch {smallest_fast}.",
        alt.layer(fast.mark_rule(strokeDash=[2, 3], color=GREY), line, points),
    )


def draw_throughput(rows: Sequence[Row], smallest_fast: int, path: str | Path) -> None:
    """Draw examples per second over batch sizes into a PNG file."""
    save([throughput_chart(rows, smallest_fast)], path)


SHAPES = ("circle", "square", "triangle-up")  # of each run through the colours


def group_points(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the means of a column over the seeds of each group and batch size.

    `low` and `high` are one standard error away. What has no value has no row.
    """
    known = frame.assign(**{column: frame[column].astype(float)})
    groups = known.groupby(["group", "batch_size"], sort=False)[column]
    points = groups.agg(["mean", "sem", "count"]).reset_index()
    points = points[points["count"] > 0]
    error = points["sem"].fillna(0.0)
    return pd.DataFrame(
        {
            "group": points["group"],
            "at": points["batch_size"],
            "mean": points["mean"],
            "low": points["mean"] - error,
            "high": points["mean"] + error,
            "seeds": points["count"],
        }
    )


def span_of(points: pd.DataFrame) -> tuple[float, float]:
    """Return the least and the greatest value of some points, with their standard errors."""
    low, high = float(points["low"].min()), float(points["high"].max())
    if low < high:
        return low, high
    room = 0.1 * abs(low) or 0.1  # Vega labels an axis of one value wrongly
    return low - room, high + room


def group_chart(
    points: pd.DataFrame, name: str, title: str, axis: str, span: tuple[float, float]
) -> Chart:
    """Return the chart of means over batch size."""
    names = list(points["group"].unique())
    rounds = [divmod(index, len(GROUP_COLOURS)) for index in range(len(names))]
    colours = alt.Scale(domain=names, range=[GROUP_COLOURS[place] for _, place in rounds])
    shapes = alt.Scale(domain=names, range=[SHAPES[turn % len(SHAPES)] for turn, _ in rounds])
    sizes = sorted(map(int, points["at"].unique()))
    base = alt.Chart(table(points.to_dict("records"))).encode(
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
