"""The recompute figure: peak bytes of each plan over the time that it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbatch.results.canvas import (
    BEST_COLOUR,
    OTHER_COLOUR,
    TARGET_COLOUR,
    draw_legend,
    new_figure,
    save,
)

# A limit above so many times the highest peak would press all points to the ground. It is not
# drawn then, and stands in the legend only. Chosen by hand, not tuned.
FAR = 3
LEAST_EXTRA = 5  # per cent: the time axis shows at least as much


@dataclass(frozen=True)
class PlanInfo:
    """One point of the recompute figure.

    Attributes:
        name: String, the plan.
        peak_bytes: Float, not counting weights and optimizer.
        extra: Float, extra time as a share of a plain step's.
    """

    name: str
    peak_bytes: float
    extra: float


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
    figure = new_figure(7, 4.6)
    axes = figure.subplots()
    times = [100 * info.extra for info in infos]
    peaks = [info.peak_bytes / 1e6 for info in infos]
    axes.step(times, peaks, where="post", color=OTHER_COLOUR, linewidth=1.6)
    axes.scatter(times, peaks, color=BEST_COLOUR, s=28, zorder=3)
    _name_points(axes, [info.name for info in infos], times, peaks)
    if room_bytes is not None and room_bytes > 0:
        axes.axhline(
            room_bytes / 1e6,
            color=TARGET_COLOUR,
            linewidth=1.2,
            linestyle="--",
            label=f"what the limit leaves, {room_bytes / 1e6:,.0f} MB",
        )
        draw_legend(figure)
    axes.margins(x=0.08)
    if max(times, default=0.0) < LEAST_EXTRA:
        axes.set_xlim(-LEAST_EXTRA / 20, LEAST_EXTRA)
    axes.set(
        xlabel="more time than a plain step, predicted (%)",
        ylabel="peak in addition to weights and optimizer (MB)",
        title=title,
    )
    room = (room_bytes or 0.0) / 1e6
    highest = max(peaks)
    if room < FAR * highest:
        highest = max(highest, room)
    axes.set_ylim(0, 1.12 * highest)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def _name_points(
    axes: Any, names: Sequence[str], times: Sequence[float], peaks: Sequence[float]
) -> None:
    """Write each plan's name above its point, to the right."""
    for position, (name, time, peak) in enumerate(zip(names, times, peaks, strict=True)):
        offset, side = (6, 6), "left"
        if position > 0 and position == len(names) - 1:
            # The last point is at the right edge, so its name goes to the left.
            offset, side = (-6, 6), "right"
        axes.annotate(
            name, (time, peak), xytext=offset, textcoords="offset points", fontsize=8, ha=side
        )
