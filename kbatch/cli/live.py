"""Live: what is said before and while a search runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from kbatch.cli.search_options import PROJECT, CommonOptions
from kbatch.recipe import Recipe
from kbatch.records import project, store
from kbatch.records.store import BASELINE_TRIAL, FRESH, PARTED, Record
from kbatch.results.ranking import leaders
from kbatch.results.words import Ahead, ended_by, own_words, race_trainings, score_text
from kbatch.space import Space
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


def announce(options: CommonOptions, space: Space, folder: Path, console: Console) -> None:
    """Print how many trainings a search takes, and how many minutes."""
    trials, trainings = number_of_trials(options, space), number_of_trainings(options, space)
    if options.tuner == "grid":
        console.print(
            f"The grid holds {space.size()} recipes, of which {trials} are tried, "
            "batch size varying first.",
            soft_wrap=True,
        )
    if not options.seconds_per_trial:
        console.print(
            f"{trainings} trainings, each as long as {options.epochs} epochs of the baseline; "
            "that is measured first.",
            highlight=False,
            soft_wrap=True,
        )
        return
    records = _records(folder)
    ahead = trainings_ahead(options, space, options.seconds_per_trial, records)
    kept = trainings - ahead.baseline - (ahead.trials or 0) - ahead.whole
    parts = f"baseline, {trials} trials, {trainings - 1 - trials} to confirm"
    earlier = f", {kept} of them kept from an earlier run" if kept else ""
    words = f"{trainings} trainings of {options.seconds_per_trial:g} s each ({parts}){earlier}"
    _print(Forecast(ahead, records).beginning(words), options, console)


def announce_horizon(
    options: CommonOptions,
    space: Space,
    seconds: float,
    records: Sequence[Record],
    console: Console,
) -> None:
    """Print the horizon that the epochs were found to take, and how long all trainings take."""
    forecast = Forecast(trainings_ahead(options, space, seconds, records), records)
    _print(forecast.beginning(f"Every training gets {seconds:.2f} s"), options, console)


def trainings_ahead(
    options: CommonOptions,
    space: Space,
    seconds: float,
    earlier: Sequence[Record] = (),
    workers: int | None = None,
) -> Ahead:
    """Return the trainings that the command makes besides those of an earlier run."""
    trials, trainings = number_of_trials(options, space), number_of_trainings(options, space)
    ended = len({record.trial for record in earlier if record.purpose == "search"})
    ahead = max(trials - ended, 0)
    return Ahead(
        seconds,
        trials=ahead,
        whole=max(trainings - trials - 1 - _confirmed(options, earlier, ahead), 0),
        baseline=int(all(record.purpose != "baseline" for record in earlier)),
        workers=workers or options.workers or 1,
        stops=options.tuner == "kbatch",
    )


def _confirmed(options: CommonOptions, earlier: Sequence[Record], trials_ahead: int) -> int:
    """How many confirmations of earlier runs are kept: trials to come may change the leaders."""
    chosen = {BASELINE_TRIAL}
    if not trials_ahead:
        chosen |= {record.trial for record in leaders(earlier, options.confirm_top)}
    seeds = Counter(record.trial for record in earlier if record.purpose == "confirmation")
    most = max(options.confirm_seeds(), default=0)
    return sum(min(seeds[trial], most) for trial in chosen)


def _print(sentence: str, options: CommonOptions, console: Console) -> None:
    stops = " Poor trials are stopped." if options.tuner == "kbatch" else ""
    console.print(f"{sentence}{stops}", highlight=False, soft_wrap=True)


def number_of_trials(options: CommonOptions, space: Space) -> int:
    """Return how many trials the search makes: no more than the space holds recipes."""
    return min(options.trials, space.size() or options.trials)


def number_of_trainings(options: CommonOptions, space: Space) -> int:
    """Return how many trainings the command makes: baseline, trials and confirmations.

    A race may end before; in each of its parts the better half of the recipes goes on.
    """
    trials = number_of_trials(options, space)
    confirmed = min(options.confirm_top, trials)
    return 1 + trials + sum(race_trainings(options.confirm_seeds(), confirmed))


def _records(folder: Path) -> list[Record]:
    """The records of the trainings that earlier runs of this search have ended."""
    file = folder / PROJECT / project.FOLDER / store.RECORDS_FILE
    return [line.record for line in store.read(file) if line.record is not None]
