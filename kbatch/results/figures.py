"""Figures: how they are drawn; the only room of matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbatch.records import atomic_file
from kbatch.results.figure_data import (
    BASELINE,
    BEST,
    OTHER,
    BatchInfo,
    CurveInfo,
    PanelInfo,
    band,
    sizes,
)

COLOURS = {BASELINE: "#444444", BEST: "#c8102e", OTHER: "#b8c4d0"}
OPTIMIZER_COLOURS, OWN_COLOUR = {"sgd": "#1f77b4", "adam": "#e08214"}, "#4d9221"
# times the highest peak: a limit above it would press all points to the ground, and stands in the
# legend alone
FAR = 3
LEAST_EXTRA = 5  # per cent of more time that the axis shows
POLICY_MARKERS = {"float32": "o", "mixed_float16": "^", "mixed_bfloat16": "D"}


def draw_curves(
    panels: Sequence[PanelInfo], goal: dict[str, Any], examples: int, path: str | Path
) -> None:
    """Draw the metric over training seconds into a PNG file: a panel for the confirmation and one for the search.

    Args:
        panels: What `figure_data.panels` gave.
        goal: The goal of the search.
        examples: Integer, validation examples, which say how far one measurement may be off.
        path: The file.
    """
    figure = _figure(6.4 * max(len(panels), 1) + 0.8, 5.6)
    figure.suptitle(_curves_title(goal), fontsize=12)
    axes = figure.subplots(1, max(len(panels), 1), sharey=True, squeeze=False)[0]
    for panel, own in zip(panels, axes, strict=False):
        _draw_panel(own, panel, goal, examples)
    if not panels:
        _say_nothing(axes[0])
    axes[0].set_ylabel(goal["metric"])
    _legend(figure, columns=len(panels))
    _save(figure, path)


def draw_batches(infos: Sequence[BatchInfo], goal: dict[str, Any], path: str | Path) -> None:
    """Draw what each training reached, and its examples per second, over its batch size into a PNG file.

    Args:
        infos: What `figure_data.batch_infos` gave.
        goal: The goal of the search.
        path: The file.
    """
    figure = _figure(11, 5.2)
    figure.suptitle(
        "Each recipe once, at its batch size; rates and other axes differ too", fontsize=12
    )
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        _batch_axis(axes, sizes(infos))
    if not infos:
        _say_nothing(left)
        _say_nothing(right)
    for info in infos:
        colour, marker = (
            OPTIMIZER_COLOURS.get(info.optimizer, OWN_COLOUR),
            POLICY_MARKERS.get(info.policy, "s"),
        )
        label = info.optimizer if info.policy == "float32" else f"{info.optimizer}, {info.policy}"
        right.scatter(
            info.batch_size,
            info.examples_per_second,
            color=colour,
            marker=marker,
            s=28,
            zorder=3,
            label=label,
        )
        _draw_value(left, info, goal, colour, marker)
        if info.baseline:
            style = {"marker": "s", "s": 110, "facecolors": "none", "edgecolors": "black"}
            left.scatter(
                info.batch_size, goal["seconds"] if info.value is None else info.value, **style
            )
            right.scatter(info.batch_size, info.examples_per_second, **style, label="baseline")
    left.set_ylabel(
        goal["metric"]
        if goal.get("target") is None
        else f"training seconds until {goal['metric']} {goal['target']:.4g} is held"
    )
    right.set(
        ylabel="examples per second",
        ylim=(0, 1.08 * max((info.examples_per_second for info in infos), default=1.0) or 1.0),
    )
    if any(info.error for info in infos):
        left.plot([], [], color="#666666", label="± 2 standard errors of measuring")
    if any(info.value is None for info in infos):
        left.scatter([], [], marker="x", color="#666666", label="not held within the horizon")
    _legend(figure, columns=3)
    _save(figure, path)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def _curves_title(goal: dict[str, Any]) -> str:
    if goal.get("target") is None:
        return f"What each recipe reaches within {goal['seconds']:.3g} training seconds"
    return f"How soon each recipe holds {goal['metric']} {goal['target']:.4g}"


def _draw_panel(axes: Any, panel: PanelInfo, goal: dict[str, Any], examples: int) -> None:
    others = [info for info in panel.curves if info.role == OTHER]
    for info in panel.curves:
        colour = COLOURS[info.role]
        if info.role == OTHER and len(info.curves) > 1:
            axes.plot(
                *zip(*info.mean, strict=True),
                color=colour,
                linewidth=1.8,
                marker=".",
                label=_folded(info.label),
            )
            continue
        if info.role == OTHER:
            label = (
                None
                if info is not others[0]
                else ("1 other trial" if len(others) == 1 else f"{len(others)} other trials")
            )
            axes.plot(*zip(*info.curves[0], strict=True), color=colour, linewidth=1.1, label=label)
            continue
        if len(info.curves) > 1:
            for curve in info.curves:
                axes.plot(*zip(*curve, strict=True), color=colour, linewidth=0.7, alpha=0.6)
        if info.mean:
            axes.plot(
                *zip(*info.mean, strict=True),
                color=colour,
                linewidth=2.4,
                marker=".",
                label=_folded(info.label),
            )
        around = _around(info, goal, examples)
        if around:
            axes.fill_between(*zip(*around, strict=True), color=colour, alpha=0.12, linewidth=0)
        if info.held:
            axes.scatter(
                *zip(*info.held, strict=True),
                marker="o",
                s=70,
                facecolors="none",
                edgecolors=colour,
                linewidths=1.6,
                zorder=4,
            )
    important = [info for info in panel.curves if info.role != OTHER]
    if any(info.held for info in important):
        axes.scatter(
            [],
            [],
            marker="o",
            s=70,
            facecolors="none",
            edgecolors="#666666",
            label="value held: the worst of three in a row",
        )
    if any(_around(info, goal, examples) for info in important):
        label = f"search: ± 2 standard errors of one measurement ({examples:,} examples)"
        if any(len(info.curves) > 1 for info in important):
            label = "confirmation: ± 1 standard deviation over the seeds"
        axes.fill_between([], [], [], color="#666666", alpha=0.2, linewidth=0, label=label)
    axes.axhline(
        goal["chance"],
        color="#222222",
        linewidth=1.1,
        linestyle=":",
        zorder=5,
        label=f"chance, {goal['chance']:.4g}",
    )
    if goal.get("target") is not None:
        axes.axhline(
            goal["target"],
            color="#2e7d32",
            linewidth=1.2,
            linestyle="--",
            label=f"target, {goal['target']:.4g}",
        )
    axes.set(xlabel="training seconds", xlim=(0, 1.03 * panel.seconds or 1.0))
    axes.set_title(panel.title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _around(
    info: CurveInfo, goal: dict[str, Any], examples: int
) -> list[tuple[float, float, float]]:
    """The band around a recipe's curve: the spread over its seeds, or of a single training what a measurement may be off."""
    return info.spread if len(info.curves) > 1 else band(info.mean, goal["metric"], examples)


def _draw_value(axes: Any, info: BatchInfo, goal: dict[str, Any], colour: str, marker: str) -> None:
    if info.value is None:
        axes.scatter(info.batch_size, goal["seconds"], color=colour, marker="x", s=34, zorder=3)
        return
    error = None if info.error is None else 2 * info.error
    axes.errorbar(
        info.batch_size,
        info.value,
        yerr=error,
        color=colour,
        marker=marker,
        markersize=5.5,
        linewidth=0,
        elinewidth=1,
        capsize=2,
        zorder=3,
    )


def _batch_axis(axes: Any, present: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(present, [str(size) for size in present])
    axes.minorticks_off()
    axes.set_xlabel("batch size")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, columns: int = 2) -> None:
    """One legend below all axes, where no curve is, each label once."""
    handles = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if handles:
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            fontsize=8,
            frameon=False,
            ncols=columns,
        )


def _folded(label: str, width: int = 76) -> str:
    """A long label on several lines."""
    import textwrap

    return "\n".join(textwrap.wrap(label, width))


def _say_nothing(axes: Any) -> None:
    axes.text(
        0.5, 0.5, "nothing was measured yet", transform=axes.transAxes, ha="center", color="#888888"
    )


@dataclass(frozen=True)
class SpeedInfo:
    """One batch size as a point of a throughput figure, and the speed that the fitted line gives it."""

    batch_size: int
    examples_per_second: float
    fitted: float | None


def speed_infos(
    measured: Iterable[tuple[int, float]], fitted: Callable[[int], float] | None
) -> list[SpeedInfo]:
    """The points of a throughput figure.

    Args:
        measured: Pairs of batch size and examples per second.
        fitted: Function that gives the fitted examples per second at a batch size, or `None`.
    """
    return [
        SpeedInfo(batch_size, speed, fitted(batch_size) if fitted else None)
        for batch_size, speed in measured
    ]


def draw_throughput(infos: Sequence[SpeedInfo], smallest_fast: int, path: str | Path) -> None:
    """Draw examples per second over batch sizes, and from where on they hardly rise, into a PNG file.

    Args:
        infos: What `speed_infos` gave.
        smallest_fast: Integer, the smallest batch size within 5 % of the best speed.
        path: The file.
    """
    figure = _figure(7, 5)
    axes = figure.subplots()
    present = [info.batch_size for info in infos]
    label = "measured, median of steady steps"
    axes.scatter(
        present,
        [info.examples_per_second for info in infos],
        color=COLOURS[BEST],
        s=28,
        zorder=3,
        label=label,
    )
    fitted = [(info.batch_size, info.fitted) for info in infos if info.fitted is not None]
    if fitted:
        axes.plot(
            *zip(*fitted, strict=True),
            color=COLOURS[BASELINE],
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
    _batch_axis(axes, present)
    axes.set(
        ylabel="examples per second", ylim=(0, None), title="What a larger batch buys in speed"
    )
    _legend(figure, columns=1)
    _save(figure, path)


@dataclass(frozen=True)
class PlanInfo:
    """One plan as a point of peak bytes and extra time (a share of a plain step's)."""

    name: str
    peak_bytes: float
    extra: float


def draw_plans(
    infos: Sequence[PlanInfo], title: str, path: str | Path, room_bytes: float | None = None
) -> None:
    """Draw the peak of each plan against the time that it costs into a PNG file.

    Args:
        infos: Plans, the fastest first.
        title: What they are of.
        path: The file.
        room_bytes: Float, what a memory limit leaves beside weights and optimizer. Optional.
    """
    figure = _figure(7, 4.6)
    axes = figure.subplots()
    times, peaks = [100 * info.extra for info in infos], [info.peak_bytes / 1e6 for info in infos]
    axes.step(times, peaks, where="post", color=COLOURS[OTHER], linewidth=1.6)
    axes.scatter(times, peaks, color=COLOURS[BEST], s=28, zorder=3)
    for position, (info, time, peak) in enumerate(zip(infos, times, peaks, strict=True)):
        # Above its point and to the right; the last one to the left, since it is at the right edge.
        last = position > 0 and position == len(infos) - 1
        offset, side = ((-6, 6), "right") if last else ((6, 6), "left")
        axes.annotate(
            info.name, (time, peak), xytext=offset, textcoords="offset points", fontsize=8, ha=side
        )
    if room_bytes is not None and room_bytes > 0:
        axes.axhline(
            room_bytes / 1e6,
            color="#2e7d32",
            linewidth=1.2,
            linestyle="--",
            label=f"what the limit leaves, {room_bytes / 1e6:,.0f} MB",
        )
        _legend(figure)
    axes.margins(x=0.08)
    if max(times, default=0.0) < LEAST_EXTRA:
        axes.set_xlim(-LEAST_EXTRA / 20, LEAST_EXTRA)
    axes.set(
        xlabel="more time than a plain step, predicted (%)",
        ylabel="peak beside weights and optimizer (MB)",
        title=title,
    )
    room = (room_bytes or 0.0) / 1e6
    axes.set_ylim(0, 1.12 * max([*peaks, room if room < FAR * max(peaks) else 0.0]))
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _save(figure: Any, path: str | Path) -> None:
    """Write a figure whole or not at all."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    atomic_file.write(Path(path), drawn.getvalue())
