"""Showing: a line for every probe where somebody is watching, since finding a batch size takes a minute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbatch.memory.probe import Probe


def shown(on_probe: Callable[[Probe], None] | None) -> Callable[[Probe], None] | None:
    """What to call with every probe: the user's own function, else one that prints a line if standard error is a terminal or a notebook."""
    return on_probe or printing(_watched())


def printing(console: Any) -> Callable[[Probe], None] | None:
    """A function that prints a line for every probe; `None` without a console."""
    if console is None:
        return None

    def show(probe: Probe) -> None:
        console.print(f"  {line(probe)}", highlight=False, markup=False)

    return show


def line(probe: Probe) -> str:
    """A probe in words."""
    used = f"{probe.peak_bytes / 1e6:,.0f} MB" if probe.peak_bytes else ""
    steps = f"{len(probe.step_seconds)} steps"
    ended = "passed" if probe.passed else probe.ended.replace("_", " ")
    return f"batch {probe.batch_size:<6} {ended:<14} {used:>10}  {steps:>9} {probe.seconds:6.1f} s"


def _watched() -> Any:
    """The console of standard error, or `None` if nobody sees it."""
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal or console.is_jupyter else None
