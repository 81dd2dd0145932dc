"""The canvas of a figure: matplotlib's figure, the parts that all figures share, and the PNG file.

This is the only module that imports matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kbatch.records import atomic_file

BASELINE_COLOUR, BEST_COLOUR, OTHER_COLOUR = "#444444", "#c8102e", "#b8c4d0"
TARGET_COLOUR = "#2e7d32"
NOTE_COLOUR = "#666666"  # of legend entries that stand for several colours


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of a size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def save(figure: Any, path: str | Path) -> None:
    """Write a figure to a PNG file, whole or not at all."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    atomic_file.write(Path(path), drawn.getvalue())


def draw_legend(figure: Any, columns: int = 2) -> None:
    """Draw one legend below all axes, where no curve is, with each label once."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles[label] = handle
    if handles:
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            fontsize=8,
            frameon=False,
            ncols=columns,
        )


def set_batch_axis(axes: Any, batch_sizes: Sequence[int]) -> None:
    """Make the x axis one of batch sizes, with a tick at each size that was trained."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(batch_sizes, [str(size) for size in batch_sizes])
    axes.minorticks_off()
    axes.set_xlabel("batch size")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)


def say_nothing_measured(axes: Any) -> None:
    """Write into empty axes that nothing was measured yet."""
    axes.text(
        0.5, 0.5, "nothing was measured yet", transform=axes.transAxes, ha="center", color="#888888"
    )
