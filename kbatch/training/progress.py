"""Watching: how a training shows its progress while it runs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from kbatch.recipe import Recipe
from kbatch.records.record import Record
from kbatch.results.words import ended_text, score_text


class Watcher:
    """Told of every training; does nothing. Override what is worth showing."""

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """A training of so many seconds begins; `purpose` is "search", "baseline", "confirmation" or "train"."""

    def progress(self, train_seconds: float, value: float | None) -> None:
        """Every tenth of a training second: seconds on the clock, and the last value measured."""

    def ended(self, record: Record) -> None:
        """A training ended."""

    def answered(self, record: Record) -> None:
        """A training was not made, since the project holds its record."""


class ProgressBar(Watcher):
    """One line per training, with a bar in seconds of the training clock while it runs on a terminal."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: Any = None

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """Print the recipe in words and begin its bar."""
        name = f"trial {trial}" if purpose == "search" else purpose
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn(
                "{task.completed:.0f} of {task.total:.0f} s {task.fields[value]}", markup=False
            ),
        )
        console = Console(markup=False, emoji=False)  # names of augmentations are the user's
        console.print(f"{name}: {recipe}", highlight=False, soft_wrap=True)
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._bar.start()
        self._task = self._bar.add_task(name, total=seconds, value="")

    def progress(self, train_seconds: float, value: float | None) -> None:
        """Move the bar."""
        assert self._bar is not None
        self._bar.update(
            self._task, completed=train_seconds, value="" if value is None else f"{value:.3f}"
        )

    def ended(self, record: Record) -> None:
        """Close the bar and print how the training ended."""
        if self._bar is not None:
            self._bar.stop()
        value = (
            "nothing measured"
            if record.outcome.value is None
            else f"{record.outcome.value:.3f} held"
        )
        print(
            f"    ended by {ended_text(record.outcome)}: {value}, score {score_text(record.score)} per second",
            flush=True,
        )
        for remark in record.outcome.remarks:
            print(f"    {remark}", flush=True)
