"""The progress of trainings while they run, on a terminal or anywhere else."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from kbatch import notebook
from kbatch.recipe import Recipe
from kbatch.records.record import Record
from kbatch.results.words import ended_by, score_text


class Watcher:
    """Is told of every training, and does nothing.

    Override the methods whose events you want to show, and set `kbatch.HyperModel.watcher`.

    Example:
    ```python
    from kbatch.training.progress import Watcher

    class Scores(Watcher):
        def ended(self, record):
            print(record.trial, record.score)

    hypermodel.watcher = Scores()
    ```
    """

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """A training begins.

        Args:
            purpose: `"search"`, `"baseline"` or `"confirmation"`.
            trial: Integer, number of the trial; -1 for the baseline.
            recipe: `Recipe` that it follows.
            seconds: Float, its horizon.
        """

    def progress(self, train_seconds: float, value: float | None) -> None:
        """A tenth of a training second has passed.

        Args:
            train_seconds: Float, seconds on the clock.
            value: Float, the last value measured, or `None`.
        """

    def ended(self, record: Record) -> None:
        """A training ended."""

    def answered(self, record: Record) -> None:
        """A training was not made: the project has its record."""


class ProgressBar(Watcher):
    """Prints two lines per training, and shows its training seconds while it runs.

    They are shown by a bar on a terminal, by a line that changes in a notebook, and nowhere else.
    """

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._line: notebook.Line | None = None
        self._seconds = 0.0
        self._task: Any = None

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """Print the recipe in words and begin its bar."""
        if self._bar is not None:
            self._bar.stop()  # of a training whose process died
        name = f"trial {trial}" if purpose == "search" else purpose
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn(
                "{task.completed:.0f} of {task.total:.0f} s {task.fields[value]}", markup=False
            ),
        )
        print(f"{name}: {recipe}", flush=True)
        console = Console(markup=False, emoji=False)  # names of augmentations are the user's
        self._line, self._seconds = notebook.Line() if console.is_jupyter else None, seconds
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._bar.start()
        self._task = self._bar.add_task(name, total=seconds, value="")

    def progress(self, train_seconds: float, value: float | None) -> None:
        """Move the bar."""
        shown = "" if value is None else f"{value:.3f}"
        if self._line is not None:
            self._line.show(f"    {train_seconds:.0f} of {self._seconds:.0f} s {shown}")
        elif self._bar is not None:
            self._bar.update(self._task, completed=train_seconds, value=shown)

    def ended(self, record: Record) -> None:
        """Close the bar and print how the training ended."""
        if self._bar is not None:
            self._bar.stop()
        if self._line is not None:
            self._line.clear()
        held = record.outcome.value
        value = "nothing measured" if held is None else f"{held:.3f} held"
        score = f"score {score_text(record.score)} per second"
        print(f"    {ended_by(record.outcome)}: {value}, {score}", flush=True)
        for remark in record.outcome.remarks:
            print(f"    {remark}", flush=True)
