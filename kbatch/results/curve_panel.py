"""One panel of the curves figure: the metric over training seconds, one curve per recipe."""

from __future__ import annotations

import textwrap
from typing import Any

from kbatch.goal import Goal
from kbatch.results.canvas import (
    BASELINE_COLOUR,
    BEST_COLOUR,
    NOTE_COLOUR,
    OTHER_COLOUR,
    TARGET_COLOUR,
)
from kbatch.results.figure_data import BASELINE, BEST, OTHER, Band, CurveInfo, PanelInfo, band

COLOURS = {BASELINE: BASELINE_COLOUR, BEST: BEST_COLOUR, OTHER: OTHER_COLOUR}
HELD = {"marker": "o", "s": 70, "facecolors": "none"}  # the circle around a held value
LABEL_WIDTH = 76  # characters of a legend line


def draw_panel(axes: Any, panel: PanelInfo, goal: Goal, examples: int) -> None:
    """Draw a panel's curves, their bands and held values, chance and target.

    Args:
        axes: Axes of matplotlib.
        panel: The curves.
        goal: The goal of the search.
        examples: Integer, validation examples, which decide the error of one measurement.
    """
    singles = [info for info in panel.curves if _is_single_other(info)]
    for info in panel.curves:
        if _is_single_other(info):
            label = _count_label(len(singles)) if info is singles[0] else None
            _draw_other_trial(axes, info, label)
        elif info.role == OTHER:
            _draw_mean(axes, info, linewidth=1.8)
        else:
            _draw_important(axes, info, goal, examples)
    important = [info for info in panel.curves if info.role != OTHER]
    _label_held_values(axes, important)
    _label_bands(axes, important, goal, examples)
    _draw_levels(axes, goal)
    axes.set(xlabel="training seconds", xlim=(0, 1.03 * panel.seconds or 1.0))
    axes.set_title(panel.title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _is_single_other(info: CurveInfo) -> bool:
    return info.role == OTHER and len(info.curves) == 1


def _count_label(trials: int) -> str:
    """The legend entry that stands for all other trials."""
    return "1 other trial" if trials == 1 else f"{trials} other trials"


def _draw_other_trial(axes: Any, info: CurveInfo, label: str | None) -> None:
    axes.plot(*zip(*info.curves[0], strict=True), color=COLOURS[OTHER], linewidth=1.1, label=label)


def _draw_mean(axes: Any, info: CurveInfo, linewidth: float) -> None:
    axes.plot(
        *zip(*info.mean, strict=True),
        color=COLOURS[info.role],
        linewidth=linewidth,
        marker=".",
        label="\n".join(textwrap.wrap(info.label, LABEL_WIDTH)),
    )


def _draw_important(axes: Any, info: CurveInfo, goal: Goal, examples: int) -> None:
    """Draw the baseline or the best recipe: each seed, their mean, the band and the held values."""
    colour = COLOURS[info.role]
    if len(info.curves) > 1:
        for curve in info.curves:
            axes.plot(*zip(*curve, strict=True), color=colour, linewidth=0.7, alpha=0.6)
    if info.mean:
        _draw_mean(axes, info, linewidth=2.4)
    around = _band(info, goal, examples)
    if around:
        axes.fill_between(*zip(*around, strict=True), color=colour, alpha=0.12, linewidth=0)
    if info.held:
        axes.scatter(
            *zip(*info.held, strict=True), **HELD, edgecolors=colour, linewidths=1.6, zorder=4
        )


def _band(info: CurveInfo, goal: Goal, examples: int) -> Band:
    """The band around a curve: the spread over its seeds, or the error of one measurement."""
    if len(info.curves) > 1:
        return info.spread
    return band(info.mean, goal.metric, examples)


def _label_held_values(axes: Any, important: list[CurveInfo]) -> None:
    if any(info.held for info in important):
        label = "value held: the worst of three in a row"
        axes.scatter([], [], **HELD, edgecolors=NOTE_COLOUR, label=label)


def _label_bands(axes: Any, important: list[CurveInfo], goal: Goal, examples: int) -> None:
    if not any(_band(info, goal, examples) for info in important):
        return
    label = f"search: ± 2 standard errors of one measurement ({examples:,} examples)"
    if any(len(info.curves) > 1 for info in important):
        label = "confirmation: ± 1 standard deviation over the seeds"
    axes.fill_between([], [], [], color=NOTE_COLOUR, alpha=0.2, linewidth=0, label=label)


def _draw_levels(axes: Any, goal: Goal) -> None:
    """Draw chance and, if there is one, the target as horizontal lines."""
    axes.axhline(
        goal.chance,
        color="#222222",
        linewidth=1.1,
        linestyle=":",
        zorder=5,
        label=f"chance, {goal.chance:.4g}",
    )
    if goal.target is not None:
        axes.axhline(
            goal.target,
            color=TARGET_COLOUR,
            linewidth=1.2,
            linestyle="--",
            label=f"target, {goal.target:.4g}",
        )
