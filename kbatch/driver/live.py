"""The driver's progress on the terminal: trial, recipe, seconds, best value, time left."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from kbatch.recipe import Recipe
from kbatch.records.store import FRESH, PARTED, Record
from kbatch.results.duration import Ahead
from kbatch.results.words import ended_by, own_words, score_text
from kbatch.training.progress import Forecast, Watcher


@dataclass(frozen=True)
class Running:
    """A training that runs: its purpose and trial, and its bar."""

    purpose: str
    trial: int
    task: TaskID


class Live(Watcher):
    """Shows a bar for every training while it runs, and prints a line when it has ended.

    Each training is told by the thread that waits for it.

    Args:
        console: Console to print to.
        trials: Integer, trials of the search.
        ahead: `Ahead`, all trainings that are left: baseline, trials and confirmations.
        earlier: Records of the trainings of earlier runs of this search.
    """

    def __init__(
        self, console: Console, trials: int, ahead: Ahead, earlier: Sequence[Record] = ()
    ) -> None:
        self._console, self._trials = console, trials
        self.forecast = Forecast(ahead, earlier)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn(
                "{task.completed:.1f} of {task.total:.1f} s {task.fields[now]}", markup=False
            ),
        )
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._running: dict[int, Running] = {}
        self._shown: set[str] = set()
        self._best: Record | None = None
        for record in earlier:
            self._compare(record)

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """Begin the bar of one training."""
        self._close()  # of a training whose process died
        name = f"trial {trial} ({trial + 1} of {self._trials})" if purpose == "search" else purpose
        task = self._progress.add_task(f"{name}: {recipe}", total=seconds, now="")
        self._running[threading.get_ident()] = Running(purpose, trial, task)

    def progress(self, train_seconds: float, value: float | None) -> None:
        """Move the bar."""
        running = self._running.get(threading.get_ident())
        if running is not None:
            value_words = "" if value is None else f"now {value:.3f}, "
            now = f"{value_words}{self._best_words()}{self.forecast.words()}"
            self._progress.update(running.task, completed=train_seconds, now=now)

    def _best_words(self) -> str:
        """The value of the highest score so far, which may be the baseline's."""
        if self._best is None or self._best.outcome.value is None:
            return ""
        whose = " (the baseline)" if self._best.baseline else ""
        return f"best so far {self._best.outcome.value:.3f}{whose}, "

    def ended(self, record: Record) -> None:
        """Print one line for the training."""
        self.forecast.ended(record)
        told = self.forecast.after(record) if record.purpose == "baseline" else ""
        left = self.forecast.words()
        self._finish(record, f"; {left}" if left and not told else "")
        if told:
            self._console.print(told, highlight=False, soft_wrap=True)

    def answered(self, record: Record) -> None:
        """Print one line for a training whose record the project has already."""
        self.forecast.answered(record)
        # Every trial asks for the baseline, which is told once.
        if record.purpose == "search" or record.key not in self._shown:
            self._finish(record, " (not trained again: the project has its record)")

    def _finish(self, record: Record, note: str) -> None:
        """Close the bar and print the training's line."""
        self._close()
        self._shown.add(record.key)
        self._compare(record)
        self._console.print(f"{self._line(record)}{note}", highlight=False, soft_wrap=True)
        for remark in record.outcome.remarks:
            self._console.print(f"    {remark}", style="yellow", highlight=False, soft_wrap=True)

    def _close(self) -> None:
        """Close the bar of this thread's training."""
        running = self._running.pop(threading.get_ident(), None)
        if running is not None:
            self._progress.remove_task(running.task)

    def _line(self, record: Record) -> str:
        """A training and its result in words."""
        value = "" if record.outcome.value is None else f"{record.outcome.value:.3f} held, "
        words = ended_by(record.outcome)
        ended = "" if words == "ended by horizon" else f", {words}"
        again = "" if record.repeats is None else f", trial {record.repeats} again"
        names = {
            "search": f"trial {record.trial} ({record.trial + 1} of {self._trials}){again}",
            "confirmation": f"confirmation, seed {record.seed}",
            PARTED: f"confirmation with the baseline's own values, seed {record.seed}",
        }
        name = names.get(record.purpose, record.purpose)
        score = f"score {score_text(record.score)} per second"
        recipe = ", ".join(filter(None, (str(record.recipe), own_words(record))))
        return f"{name}: {recipe}: {value}{score}{ended}"

    def _compare(self, record: Record) -> None:
        """Keep the record of the highest score, confirmations excepted."""
        if record.purpose not in FRESH and (self._best is None or record.score > self._best.score):
            self._best = record
