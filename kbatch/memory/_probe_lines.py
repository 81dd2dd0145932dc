"""Probe lines: a printed line for every probe, where somebody is watching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from kbatch.memory._probe import Probe

OF_FAILED = (
    "the MB of a size that failed are those in use when it failed, without the tensor that found "
    "no room: they may be fewer than those of a smaller size that passed"
)
LONG_SECONDS = 10.0  # of a training that is announced: chosen by hand


@runtime_checkable
class Patience(Protocol):
    """A listener that is told before a training that may take long."""

    def expect(self, batch_size: int, steps: int, seconds: float) -> None:
        """A confirmation of `steps` steps begins, which should take about `seconds` seconds."""


def shown(on_probe: Callable[[Probe], None] | None) -> Callable[[Probe], None] | None:
    """The function to call with every probe: the user's own, else one that prints a line.

    Lines are printed in a terminal and in a notebook, since finding a batch size takes a minute.
    """
    return on_probe or printing(_watched())


def printing(console: Any) -> Callable[[Probe], None] | None:
    """A function that prints a line for every probe; `None` without a console."""
    return None if console is None else Lines(console)


class Lines:
    """Prints a line for every probe, and one before a training that takes long.

    Args:
        console: A console of rich's.
    """

    def __init__(self, console: Any) -> None:
        self._console, self._explained = console, False

    def __call__(self, probe: Probe) -> None:
        """Print the line of a probe, and once what the bytes of one that failed are."""
        self._console.print(f"  {line(probe)}", highlight=False, markup=False)
        if probe.peak_bytes and not probe.passed and not self._explained:
            self._explained = True
            self._console.print(f"    {OF_FAILED}", highlight=False, markup=False, soft_wrap=True)

    def expect(self, batch_size: int, steps: int, seconds: float) -> None:
        """Print what begins, if it will take long."""
        if seconds >= LONG_SECONDS:
            how = f"{steps} steps in a fresh process, about {seconds:,.0f} s …"
            text = f"  batch {batch_size:<6} is confirmed by {how}"
            self._console.print(text, highlight=False, markup=False)


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
