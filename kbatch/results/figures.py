"""Figures: what they show, computed apart from how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbatch.records.record import Record

BASELINE_COLOUR, BEST_COLOUR, OTHER_COLOUR = "#444444", "#c8102e", "#b8c4d0"
OPTIMIZER_COLOURS = {"sgd": "#1f77b4", "adam": "#e08214", "compiled": "#4d9221"}


@dataclass(frozen=True)
class CurveInfo:
    """One trial's curve: `(train_seconds, value)` points, and whether it is the best, the baseline or another."""

    label: str
    role: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class BatchInfo:
    """One trial as a point over its batch size."""

    optimizer: str
    batch_size: int
    value: float
    examples_per_second: float
    baseline: bool


def curve_infos(records: Sequence[Record]) -> list[CurveInfo]:
    """The curves of a search, the best and the baseline last, so that they are drawn on top.

    Args:
        records: Records of trials and baseline.
    """
    trials = [record for record in records if record.purpose == "search" and record.outcome.curve]
    best = max(trials, key=lambda record: record.score, default=None)
    infos = [CurveInfo(f"trial {record.trial}", "other", record.outcome.curve) for record in trials if record is not best]
    infos += [CurveInfo(f"baseline: {record.recipe}", "baseline", record.outcome.curve) for record in records if record.purpose == "baseline"]
    return infos + ([CurveInfo(f"best, trial {best.trial}: {best.recipe}", "best", best.outcome.curve)] if best else [])


def batch_infos(records: Sequence[Record]) -> list[BatchInfo]:
    """Every trial that measured something, as a point over its batch size, smallest batch first."""
    infos = [
        BatchInfo(record.recipe.optimizer, record.recipe.batch_size, record.outcome.value, record.outcome.examples_per_second, record.baseline)
        for record in records
        if record.purpose in ("search", "baseline") and record.outcome.value is not None
    ]
    return sorted(infos, key=lambda info: info.batch_size)


def draw_curves(infos: Sequence[CurveInfo], metric: str, seconds: float, chance: float, path: str | Path) -> None:
    """Draw the metric over training seconds into a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.subplots()
    styles = {"other": (OTHER_COLOUR, 1.2), "baseline": (BASELINE_COLOUR, 2.4), "best": (BEST_COLOUR, 2.4)}
    others = [info for info in infos if info.role == "other"]
    for info in infos:
        colour, width = styles[info.role]
        label = info.label if info.role != "other" else (f"{len(others)} other trials" if info is others[0] else None)
        axes.plot(*zip(*info.points, strict=True), color=colour, linewidth=width, marker=".", label=label)
    axes.axhline(chance, color="#888888", linewidth=0.8, linestyle=":", label=f"chance, {chance:.2f}")
    axes.set(xlabel="training seconds", ylabel=metric, xlim=(0, seconds * 1.02), title="What each recipe reaches in the same training time")
    axes.legend(loc="best", fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def draw_batches(infos: Sequence[BatchInfo], metric: str, path: str | Path) -> None:
    """Draw the metric and the examples per second against the batch size, a line per optimizer, into a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    panels = {"value": metric, "examples_per_second": "examples per second"}
    for axes, (field, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for optimizer in sorted({info.optimizer for info in infos}):
            own = [info for info in infos if info.optimizer == optimizer]
            best = {info.batch_size: max(getattr(i, field) for i in own if i.batch_size == info.batch_size) for info in own}
            colour = OPTIMIZER_COLOURS.get(optimizer, "#666666")
            axes.plot(list(best), list(best.values()), color=colour, linewidth=1.6, label=f"{optimizer} (best at each size)")
            axes.scatter([info.batch_size for info in own], [getattr(info, field) for info in own], color=colour, s=22, zorder=3)
        marks = [info for info in infos if info.baseline]
        axes.scatter(
            [m.batch_size for m in marks],
            [getattr(m, field) for m in marks],
            marker="s",
            s=90,
            facecolors="none",
            edgecolors="black",
            label="baseline",
        )
        axes.set_xscale("log", base=2)
        sizes = sorted({info.batch_size for info in infos})
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set(xlabel="batch size", ylabel=label)
        axes.spines[["top", "right"]].set_visible(False)
        if field == "examples_per_second":
            axes.legend(fontsize=8, frameon=False)
    figure.savefig(path)


@dataclass(frozen=True)
class SpeedInfo:
    """One batch size as a point of a throughput figure, and the speed that the fitted line gives it."""

    batch_size: int
    examples_per_second: float
    fitted: float | None


def speed_infos(measured: Iterable[tuple[int, float]], fitted: Callable[[int], float] | None) -> list[SpeedInfo]:
    """The points of a throughput figure.

    Args:
        measured: Pairs of batch size and examples per second.
        fitted: Function that gives the fitted examples per second at a batch size, or `None`.
    """
    return [SpeedInfo(batch_size, speed, fitted(batch_size) if fitted else None) for batch_size, speed in measured]


def draw_throughput(infos: Sequence[SpeedInfo], smallest_fast: int, path: str | Path) -> None:
    """Draw examples per second over batch sizes, and from where on they hardly rise, into a PNG file.

    Args:
        infos: What `speed_infos` gave.
        smallest_fast: Integer, the smallest batch size within 5 % of the best speed.
        path: The file.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    sizes = [info.batch_size for info in infos]
    axes.scatter(sizes, [info.examples_per_second for info in infos], color=BEST_COLOUR, s=28, zorder=3, label="measured, median of steady steps")
    fitted = [(info.batch_size, info.fitted) for info in infos if info.fitted is not None]
    if fitted:
        axes.plot(*zip(*fitted, strict=True), color=BASELINE_COLOUR, linewidth=1.6, label="seconds per step as a line in the batch")
    axes.axvline(smallest_fast, color="#888888", linewidth=1, linestyle=":", label=f"within 5 % of the best from {smallest_fast}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel="batch size", ylabel="examples per second", ylim=(0, None), title="What a larger batch buys in speed")
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


@dataclass(frozen=True)
class PlanInfo:
    """One plan as a point of peak bytes and extra time (a share of a plain step's)."""

    name: str
    peak_bytes: float
    extra: float


def draw_plans(infos: Sequence[PlanInfo], title: str, path: str | Path) -> None:
    """Draw the peak of each plan against the time that it costs into a PNG file.

    Args:
        infos: Plans, the fastest first.
        title: What they are of.
        path: The file.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    times, peaks = [100 * info.extra for info in infos], [info.peak_bytes / 1e6 for info in infos]
    axes.step(times, peaks, where="post", color=OTHER_COLOUR, linewidth=1.6)
    axes.scatter(times, peaks, color=BEST_COLOUR, s=28, zorder=3)
    axes.annotate(infos[0].name, (times[0], peaks[0]), xytext=(6, 6), textcoords="offset points", fontsize=8)
    if len(infos) > 1:  # to the left of its point, which is at the right edge
        axes.annotate(infos[-1].name, (times[-1], peaks[-1]), xytext=(-6, -12), textcoords="offset points", fontsize=8, ha="right")
    axes.set(xlabel="more time than a plain step, predicted (%)", ylabel="peak beside weights and optimizer (MB)", ylim=(0, None), title=title)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
