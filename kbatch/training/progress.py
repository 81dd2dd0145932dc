"""Progress: bars, lines and the seconds that are left."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from kbatch import plain_text
from kbatch.recipe import Recipe
from kbatch.records.store import BASELINE_TRIAL, PARTED, Record
from kbatch.results.words import Ahead, Taken, ended_by, own_words, score_text, taken_of, time_words
from kbatch.text_table import PlainConsole

BEFORE_BASELINE = "told better once the baseline has ended"


class Forecast:
    """Tells how long the trainings take that are left, from those that ended.

    Each training is told by the thread that waits for it.
    """

    def __init__(
        self,
        ahead: Ahead,
        earlier: Sequence[Record] = (),
        ends_in: float = math.inf,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._ahead, self._clock = ahead, clock
        self._taken = taken_of(earlier)
        self._counted = {_forecast_name(record) for record in earlier}
        self._began = clock()
        self._ends_at = self._began + ends_in
        self._last: dict[int, float] = {}  # when each thread's last training ended

    @property
    def done(self) -> int:
        """How many trainings have ended, those before it began among them."""
        return len(self._counted)

    def ended(self, record: Record) -> None:
        """Take up a training that ended, with what came between it and the one before."""
        thread, now = threading.get_ident(), self._clock()
        taken = Taken.of(record, now - self._last.get(thread, self._began))
        self._last[thread] = now
        if taken is not None:
            self._taken.append(taken)
        self.answered(record)

    def answered(self, record: Record) -> None:
        """Count a training that is not made any more."""
        name = _forecast_name(record)
        if name in self._counted:
            return
        self._counted.add(name)
        trials, whole = self._ahead.trials, self._ahead.whole
        if record.purpose == "baseline":
            self._ahead = replace(self._ahead, baseline=0)
        elif record.purpose != "search":
            self._ahead = replace(self._ahead, whole=max(whole - 1, 0))
        elif trials is not None:
            self._ahead = replace(self._ahead, trials=max(trials - 1, 0))

    @property
    def seconds_left(self) -> float | None:
        """Wall-clock seconds that are left; `None` before anything was measured."""
        left, now = self._ahead.seconds(self._taken), self._clock()
        if left is not None and self._ahead.workers == 1:
            left = max(left - (now - max(self._last.values(), default=self._began)), 0.0)
        to_budget = max(self._ends_at - now, 0.0)
        if left is None and math.isinf(to_budget):
            return None
        return to_budget if left is None else min(left, to_budget)

    def beginning(self, parts: str) -> str:
        """Return the sentence before the first training."""
        left = self.seconds_left
        if left is not None:
            return f"{parts}: {self._at_most()} {time_words(left)}."
        least = self._ahead.least_seconds
        certain = f"at least {time_words(least)}, and " if self._ahead.trials is not None else ""
        return f"{parts}: {certain}{BEFORE_BASELINE}."

    def after(self, record: Record) -> str:
        """Return what a training took and what is left, in words; empty where that is unknown."""
        left = self.words()
        if not left or not self._taken:
            return ""
        trained = f"{record.outcome.train_seconds:.3g} training seconds"
        wall = time_words(self._taken[-1].wall_seconds)
        return f"{trained} took {wall} by the wall clock: {left}"

    def words(self) -> str:
        """Return what is left in words; empty before anything was measured, and at the end."""
        left = self.seconds_left
        if left is None or self._ahead.is_over:
            return ""
        return f"about {time_words(left)} left"

    def _at_most(self) -> str:
        return "about" if math.isinf(self._ends_at) else "at most"


def _forecast_name(record: Record) -> tuple[str, int] | str:
    """What tells a training from others: a trial by its number, since a record may answer two."""
    return ("search", record.trial) if record.purpose == "search" else record.key


class Watcher:
    """Is told of every training, and does nothing.

    Override the methods whose events you want to show, and set `kbatch.HyperModel.watcher`. With an
    executor of several workers, a thread for each calls them, one at a time.

    Example:
    ```python
    from kbatch.training.progress import Watcher

    class Scores(Watcher):
        def ended(self, record):
            print(record.trial, record.score)

    hypermodel.watcher = Scores()
    ```
    """

    def begins(self, forecast: Forecast, parts: str) -> None:
        """A search or a confirmation begins."""

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """A training begins."""

    def progress(self, train_seconds: float, value: float | None) -> None:
        """A tenth of a training second has passed."""

    def ended(self, record: Record) -> None:
        """A training ended."""

    def answered(self, record: Record) -> None:
        """A training was not made: the project has its record."""


class _Forecasting(Watcher):
    """Prints how long a search or a confirmation takes, and keeps what is left of it."""

    def __init__(self) -> None:
        self._forecast: Forecast | None = None

    def begins(self, forecast: Forecast, parts: str) -> None:
        """Print how long it takes, as far as that is known."""
        self._forecast = forecast
        print(forecast.beginning(parts), flush=True)

    def answered(self, record: Record) -> None:
        """Count a training that is not made any more."""
        if self._forecast is not None:
            self._forecast.answered(record)

    def _left(self) -> str:
        """The time that is left, in words; empty while it is unknown."""
        return "" if self._forecast is None else self._forecast.words()

    def _print_end(self, record: Record) -> None:
        """Print how a training ended, what is left of the search, and remarks."""
        if self._forecast is not None:
            self._forecast.ended(record)
        is_first = record.purpose == "baseline"
        left = "" if is_first else self._left()
        print(f"    {'; '.join(filter(None, (_end_of(record), left)))}", flush=True)
        for remark in record.outcome.remarks:
            print(f"    {remark}", flush=True)
        told = self._forecast.after(record) if self._forecast and is_first else ""
        if told:
            print(f"    {told}", flush=True)


class ProgressBar(_Forecasting):
    """Prints two lines per training, and shows its training seconds while it runs.

    They are shown by a bar on a terminal, by a line that changes in a notebook, and nowhere else.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bar: Progress | None = None
        self._line: plain_text.StatusLine | None = None
        self._seconds = 0.0
        self._task: Any = None

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """Print the recipe in words and begin its bar."""
        if self._bar is not None:
            self._bar.stop()  # of a training whose process died
        name = _name(purpose, trial)
        print(f"{name}: {recipe}", flush=True)
        console = PlainConsole()  # names of augmentations are the user's
        self._line, self._seconds = plain_text.StatusLine() if console.is_jupyter else None, seconds
        self._bar = _bars(console)
        self._bar.start()
        self._task = self._bar.add_task(name, total=seconds, value="")

    def progress(self, train_seconds: float, value: float | None) -> None:
        """Move the bar."""
        shown = ", ".join(filter(None, ("" if value is None else f"{value:.3f}", self._left())))
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
        self._print_end(record)


class SeveralBars(_Forecasting):
    """Prints two lines for each training that ended, and bars of all that run on a terminal.

    Each training is told by the thread that waits for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bars: Progress | None = None
        self._tasks: dict[int, TaskID] = {}

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """Begin its bar."""
        if self._bars is None:
            self._bars = _bars(PlainConsole())
            self._bars.start()
        self._close()  # of a training whose process died
        task = self._bars.add_task(_name(purpose, trial), total=seconds, value="")
        self._tasks[threading.get_ident()] = task

    def progress(self, train_seconds: float, value: float | None) -> None:
        """Move its bar."""
        task = self._tasks.get(threading.get_ident())
        if self._bars is not None and task is not None:
            shown = ", ".join(filter(None, ("" if value is None else f"{value:.3f}", self._left())))
            self._bars.update(task, completed=train_seconds, value=shown)

    def ended(self, record: Record) -> None:
        """Close its bar, and print the recipe in words and how the training ended."""
        self._close()
        if self._bars is not None and not self._tasks:
            self._bars.stop()
            self._bars = None
        print(f"{_name(record.purpose, record.trial)}: {record.recipe}", flush=True)
        self._print_end(record)

    def _close(self) -> None:
        task = self._tasks.pop(threading.get_ident(), None)
        if self._bars is not None and task is not None:
            self._bars.remove_task(task)


def bars_of(workers: int) -> Watcher:
    """Return the watcher that shows so many trainings at once."""
    return SeveralBars() if workers > 1 else ProgressBar()


def _name(purpose: str, trial: int) -> str:
    whose = "the baseline" if trial == BASELINE_TRIAL else f"trial {trial}"
    names = {
        "search": whose,
        "confirmation": f"confirmation of {whose}",
        PARTED: f"confirmation of {whose}'s recipe with the baseline's own values",
    }
    return names.get(purpose, purpose)


def _end_of(record: Record) -> str:
    """How a training ended, in words."""
    held = record.outcome.value
    value = "nothing measured" if held is None else f"{held:.3f} held"
    words = ": ".join(filter(None, (own_words(record), ended_by(record.outcome))))
    return f"{words}: {value}, score {score_text(record.score)} per second"


def _bars(console: Console) -> Progress:
    """Bars of training seconds, shown on a terminal only."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} s {task.fields[value]}", markup=False),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


PAGE_SHARE = 0.02  # of the seconds of a search; a page takes 0.3 to 1.1 s


class LivePage(Watcher):
    """Tells another watcher of every training, and writes the page of the search after some.

    The page is written between two trainings, so no clock counts it. It waits until writing takes
    no more than 2 % of a search: trainings that take long are all on it, of short ones some wait.
    If it cannot be written, a warning says so once, and the search goes on.

    Args:
        directory: String or path, the folder of the search.
        watcher: `Watcher` that is told too, such as a `ProgressBar`.
        clock: Function that returns seconds. Defaults to `time.monotonic`.

    Example:
    ```python
    from kbatch.training.progress import LivePage, ProgressBar

    hypermodel.watcher = LivePage("runs/pets", ProgressBar())
    ```
    """

    def __init__(
        self, directory: Any, watcher: Watcher, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._watcher = watcher
        self._clock, self._due = clock, -math.inf  # when the page may be written again
        self._warned = False

    def begins(self, forecast: Forecast, parts: str) -> None:
        """Tell that a search or a confirmation begins."""
        self._watcher.begins(forecast, parts)

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """Tell that a training begins."""
        self._watcher.started(purpose, trial, recipe, seconds)

    def progress(self, train_seconds: float, value: float | None) -> None:
        """Tell that time has passed."""
        self._watcher.progress(train_seconds, value)

    def answered(self, record: Record) -> None:
        """Tell that a record answered a training."""
        self._watcher.answered(record)

    def ended(self, record: Record) -> None:
        """Tell that a training ended, and write the page if that takes little of the time."""
        self._watcher.ended(record)
        if self._clock() < self._due:
            return
        from kbatch.results import page  # altair and jinja2, which no other search needs

        try:
            page.vega()  # takes seconds once on a machine, and no time of a later page
            began = self._clock()
            page.write_live(self._directory)
            ended = self._clock()
            self._due = ended + (ended - began) * (1 / PAGE_SHARE - 1)
        except Exception as error:  # whatever it is, the record of the training is safe
            self._warn(page.FILE, error)

    def _warn(self, file: str, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        words = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(
            f"The page {file} could not be written, and the search goes on: {words}",
            stacklevel=3,
        )
