"""The throughput figure: examples per second over batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbatch.results.canvas import (
    BASELINE_COLOUR,
    BEST_COLOUR,
    draw_legend,
    new_figure,
    save,
    set_batch_axis,
)


@dataclass(frozen=True)
class SpeedInfo:
    """One point of the throughput figure.

    Attributes:
        batch_size: Integer.
        examples_per_second: Float, measured.
        fitted: Float, the examples per second of the fitted line at this batch size, or `None`
            if no line was fitted.
    """

    batch_size: int
    examples_per_second: float
    fitted: float | None


def speed_infos(
    measured: Iterable[tuple[int, float]], fitted: Callable[[int], float] | None
) -> list[SpeedInfo]:
    """Return the points of a throughput figure.

    Args:
        measured: Pairs of batch size and examples per second.
        fitted: Function that gives the fitted examples per second at a batch size, or `None`.
    """
    return [
        SpeedInfo(batch_size, speed, fitted(batch_size) if fitted else None)
        for batch_size, speed in measured
    ]


def draw_throughput(infos: Sequence[SpeedInfo], smallest_fast: int, path: str | Path) -> None:
    """Draw examples per second over batch sizes into a PNG file.

    Args:
        infos: Points of `speed_infos`.
        smallest_fast: Integer, the smallest batch size within 5 % of the best speed.
        path: The file.
    """
    figure = new_figure(7, 5)
    axes = figure.subplots()
    batch_sizes = [info.batch_size for info in infos]
    axes.scatter(
        batch_sizes,
        [info.examples_per_second for info in infos],
        color=BEST_COLOUR,
        s=28,
        zorder=3,
        label="measured, median of steady steps",
    )
    fitted = [(info.batch_size, info.fitted) for info in infos if info.fitted is not None]
    if fitted:
        axes.plot(
            *zip(*fitted, strict=True),
            color=BASELINE_COLOUR,
            linewidth=1.6,
            label="fitted: a fixed time a step, and a time per example",
        )
    axes.axvline(
        smallest_fast,
        color="#888888",
        linewidth=1,
        linestyle=":",
        label=f"within 5 % of the best from {smallest_fast}",
    )
    set_batch_axis(axes, batch_sizes)
    axes.set(
        ylabel="examples per second", ylim=(0, None), title="What a larger batch buys in speed"
    )
    draw_legend(figure, columns=1)
    save(figure, path)
