"""The two figures of a search: the metric over seconds, and results over batch size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kbatch.goal import Goal
from kbatch.results.canvas import (
    NOTE_COLOUR,
    draw_legend,
    new_figure,
    save,
    say_nothing_measured,
    set_batch_axis,
)
from kbatch.results.curve_panel import draw_panel
from kbatch.results.figure_data import BatchInfo, PanelInfo, sizes

OPTIMIZER_COLOURS, OWN_COLOUR = {"sgd": "#1f77b4", "adam": "#e08214"}, "#4d9221"
POLICY_MARKERS = {"float32": "o", "mixed_float16": "^", "mixed_bfloat16": "D"}
BASELINE_FRAME = {"marker": "s", "s": 110, "facecolors": "none", "edgecolors": "black"}


def draw_curves(panels: Sequence[PanelInfo], goal: Goal, examples: int, path: str | Path) -> None:
    """Draw the metric over training seconds into a PNG file.

    The confirmation and the search have a panel each.

    Args:
        panels: Panels of `figure_data.panels`.
        goal: The goal of the search.
        examples: Integer, validation examples, which decide the error of one measurement.
        path: The file.
    """
    figure = new_figure(6.4 * max(len(panels), 1) + 0.8, 5.6)
    figure.suptitle(_curves_title(goal), fontsize=12)
    axes = figure.subplots(1, max(len(panels), 1), sharey=True, squeeze=False)[0]
    for panel, own in zip(panels, axes, strict=False):
        draw_panel(own, panel, goal, examples)
    if not panels:
        say_nothing_measured(axes[0])
    axes[0].set_ylabel(goal.metric)
    draw_legend(figure, columns=len(panels))
    save(figure, path)


def draw_batches(infos: Sequence[BatchInfo], goal: Goal, path: str | Path) -> None:
    """Draw the results and the examples per second over the batch size into a PNG file.

    Args:
        infos: Points of `figure_data.batch_infos`.
        goal: The goal of the search.
        path: The file.
    """
    figure = new_figure(11, 5.2)
    figure.suptitle(
        "Each recipe once, at its batch size; rates and other axes differ too", fontsize=12
    )
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        set_batch_axis(axes, sizes(infos))
        if not infos:
            say_nothing_measured(axes)
    for info in infos:
        _draw_speed(right, info)
        _draw_result(left, info, goal)
        if info.baseline:
            result = goal.seconds if info.value is None else info.value
            left.scatter(info.batch_size, result, **BASELINE_FRAME)
            right.scatter(
                info.batch_size, info.examples_per_second, **BASELINE_FRAME, label="baseline"
            )
    left.set_ylabel(_result_label(goal))
    fastest = max((info.examples_per_second for info in infos), default=1.0)
    right.set(ylabel="examples per second", ylim=(0, 1.08 * fastest or 1.0))
    _label_marks(left, infos)
    draw_legend(figure, columns=3)
    save(figure, path)


def _curves_title(goal: Goal) -> str:
    if goal.target is None:
        return f"What each recipe reaches within {goal.seconds:.3g} training seconds"
    return f"How soon each recipe holds {goal.metric} {goal.target:.4g}"


def _result_label(goal: Goal) -> str:
    if goal.target is None:
        return str(goal.metric)
    return f"training seconds until {goal.metric} {goal.target:.4g} is held"


def _style(info: BatchInfo) -> dict[str, Any]:
    """The colour of an optimizer and the marker of a policy."""
    return {
        "color": OPTIMIZER_COLOURS.get(info.optimizer, OWN_COLOUR),
        "marker": POLICY_MARKERS.get(info.policy, "s"),
    }


def _draw_speed(axes: Any, info: BatchInfo) -> None:
    label = info.optimizer if info.policy == "float32" else f"{info.optimizer}, {info.policy}"
    axes.scatter(
        info.batch_size, info.examples_per_second, **_style(info), s=28, zorder=3, label=label
    )


def _draw_result(axes: Any, info: BatchInfo, goal: Goal) -> None:
    """Draw a training's result with two standard errors, or a cross if its target was missed."""
    style = _style(info)
    if info.value is None:
        cross = {**style, "marker": "x"}
        axes.scatter(info.batch_size, goal.seconds, **cross, s=34, zorder=3)
        return
    axes.errorbar(
        info.batch_size,
        info.value,
        yerr=None if info.error is None else 2 * info.error,
        **style,
        markersize=5.5,
        linewidth=0,
        elinewidth=1,
        capsize=2,
        zorder=3,
    )


def _label_marks(axes: Any, infos: Sequence[BatchInfo]) -> None:
    """Explain error bars and crosses in the legend, if there are any."""
    if any(info.error for info in infos):
        axes.plot([], [], color=NOTE_COLOUR, label="± 2 standard errors of measuring")
    if any(info.value is None for info in infos):
        axes.scatter([], [], marker="x", color=NOTE_COLOUR, label="not held within the horizon")
