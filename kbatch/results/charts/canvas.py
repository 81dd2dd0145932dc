"""The canvas of charts: a chart with its words, colours, and what Vega makes of both.

The modules of this package are the only ones that import altair and vl_convert.
"""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

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
