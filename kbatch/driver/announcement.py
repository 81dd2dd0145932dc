"""The announcement of a search: how many trainings it takes, and how long they will be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kbatch.driver.options import PROJECT, Options
from kbatch.records import project, store
from kbatch.records.store import BASELINE_TRIAL, Record
from kbatch.results.duration import Ahead, race_trainings
from kbatch.results.ranking import leaders
from kbatch.space import Space
from kbatch.training.progress import Forecast


def announce(options: Options, space: Space, folder: Path, console: Console) -> None:
    """Print how many trainings a search takes, and how many minutes.

    Args:
        options: The options of the command.
        space: The space of the search.
        folder: Folder of the results.
        console: Console to print to.
    """
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
    options: Options, space: Space, seconds: float, records: Sequence[Record], console: Console
) -> None:
    """Print the horizon that the epochs were found to take, and how long all trainings take.

    Args:
        options: The options of the command.
        space: The space of the search.
        seconds: Float, the horizon.
        records: Records of the trainings of earlier runs.
        console: Console to print to.
    """
    forecast = Forecast(trainings_ahead(options, space, seconds, records), records)
    _print(forecast.beginning(f"Every training gets {seconds:.2f} s"), options, console)


def trainings_ahead(
    options: Options,
    space: Space,
    seconds: float,
    earlier: Sequence[Record] = (),
    workers: int | None = None,
) -> Ahead:
    """Return the trainings that the command makes besides those of an earlier run.

    Args:
        options: The options of the command.
        space: The space of the search.
        seconds: Float, the horizon.
        earlier: Records of the trainings of earlier runs. Optional.
        workers: Integer, how many are made at once. Defaults to what the options say.
    """
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


def _confirmed(options: Options, earlier: Sequence[Record], trials_ahead: int) -> int:
    """How many confirmations of earlier runs are kept: trials to come may change the leaders."""
    chosen = {BASELINE_TRIAL}
    if not trials_ahead:
        chosen |= {record.trial for record in leaders(earlier, options.confirm_top)}
    seeds = Counter(record.trial for record in earlier if record.purpose == "confirmation")
    most = max(options.confirm_seeds(), default=0)
    return sum(min(seeds[trial], most) for trial in chosen)


def _print(sentence: str, options: Options, console: Console) -> None:
    stops = " Poor trials are stopped." if options.tuner == "kbatch" else ""
    console.print(f"{sentence}{stops}", highlight=False, soft_wrap=True)


def number_of_trials(options: Options, space: Space) -> int:
    """Return how many trials the search makes: no more than the space holds recipes."""
    return min(options.trials, space.size() or options.trials)


def number_of_trainings(options: Options, space: Space) -> int:
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
