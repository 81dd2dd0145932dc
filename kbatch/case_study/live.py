"""Live: the driver's progress on the terminal: trial, recipe in words, seconds, best so far, time left."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from kbatch.recipe import Recipe
from kbatch.records.record import Record
from kbatch.training.watching import Watcher

FIRST_GUESS = 1.5  # wall-clock seconds per training second, before one training told


class Live(Watcher):
    """Shows every training as it runs, and one line when it ended.

    Args:
        console: Where to print.
        trials: Integer, trials of the search.
        trainings: Integer, trainings in all: baseline, trials and confirmations.
        seconds: Float, the horizon.
    """

    def __init__(self, console: Console, trials: int, trainings: int, seconds: float) -> None:
        self._console, self._trials, self._trainings, self._seconds = console, trials, trainings, seconds
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.1f} of {task.total:.1f} s {task.fields[now]}", markup=False),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task: TaskID | None = None
        self._began = 0.0
        self._walls: list[float] = []
        self._done = self._search_done = 0
        self._best: Record | None = None

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    @property
    def seconds_left(self) -> float:
        """Wall-clock seconds that the remaining trainings will take, going by those so far."""
        per_training = sum(self._walls) / len(self._walls) if self._walls else FIRST_GUESS * self._seconds
        return max(self._trainings - self._done, 0) * per_training

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """Begin the bar of one training."""
        self._began, self._seconds = time.perf_counter(), seconds
        name = f"trial {trial} ({self._search_done + 1} of {self._trials})" if purpose == "search" else purpose
        self._task = self._progress.add_task(f"{name}: {recipe}", total=seconds, now="")

    def progress(self, train_seconds: float, value: float | None) -> None:
        """Move the bar."""
        if self._task is not None:
            best = f", best so far {self._best.outcome.value:.3f}" if self._best and self._best.outcome.value is not None else ""
            now = ("" if value is None else f"now {value:.3f}") + best + f", {_clock(self.seconds_left)} left"
            self._progress.update(self._task, completed=train_seconds, now=now)

    def ended(self, record: Record) -> None:
        """Print one line for the training."""
        if self._task is not None:  # a crashed training was never begun
            self._walls.append(time.perf_counter() - self._began)
        self._finish(record, "")

    def answered(self, record: Record) -> None:
        """Print one line for a training that an earlier run made."""
        if record.purpose != "baseline" or self._done == 0:
            self._finish(record, " (from an earlier run)")

    def _finish(self, record: Record, note: str) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        self._done += 1
        self._search_done += record.purpose == "search"
        if record.purpose == "search" and (self._best is None or record.score > self._best.score):
            self._best = record
        value = "" if record.outcome.value is None else f"{record.outcome.value:.3f} held, "
        ended = "" if record.outcome.ended == "horizon" else f", ended by {record.outcome.ended}"
        names = {"search": f"trial {record.trial} ({self._search_done} of {self._trials})", "confirmation": f"confirmation, seed {record.seed}"}
        name = names.get(record.purpose, record.purpose)
        line = f"{name}: {record.recipe}: {value}score {1000 * record.score:.1f}{ended}{note}"
        self._console.print(line, highlight=False, soft_wrap=True)
        for remark in record.outcome.remarks:
            self._console.print(f"    {remark}", style="yellow", highlight=False, soft_wrap=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
