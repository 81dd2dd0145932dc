"""The recompute chart: peak bytes of each plan over the time that it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from kbatch.results.charts.canvas import BLUE, GREEN, GREY, Chart, save, table

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
    """Return the chart of the peak of each plan over the time that it costs.

    Args:
        infos: Plans, the fastest first.
        title: Title of the chart.
        room_bytes: Float, the bytes of a memory limit that weights and optimizer leave. Optional.
    """
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
    """Draw the peak of each plan over the time that it costs into a PNG file.

    Args:
        infos: Plans, the fastest first.
        title: Title of the figure.
        path: The file.
        room_bytes: Float, the bytes of a memory limit that weights and optimizer leave. Optional.
    """
    save([plan_chart(infos, title, room_bytes)], path)
