"""The throughput chart: examples per second over batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt

from kbatch.results.charts.canvas import BLUE, GREY, RED, Chart, batch_axis, save, table


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
    """Return the points of a throughput chart.

    Args:
        measured: Pairs of batch size and examples per second.
        fitted: Function that gives the fitted examples per second at a batch size, or `None`.
    """
    return [
        SpeedInfo(batch_size, speed, fitted(batch_size) if fitted else None)
        for batch_size, speed in measured
    ]


def throughput_chart(infos: Sequence[SpeedInfo], smallest_fast: int) -> Chart:
    """Return the chart of examples per second over batch sizes.

    Args:
        infos: Points of `speed_infos`.
        smallest_fast: Integer, the smallest batch size within 5 % of the best speed.
    """
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
    """Draw examples per second over batch sizes into a PNG file.

    Args:
        infos: Points of `speed_infos`.
        smallest_fast: Integer, the smallest batch size within 5 % of the best speed.
        path: The file.
    """
    save([throughput_chart(infos, smallest_fast)], path)
