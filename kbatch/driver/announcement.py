"""The announcement of a search: how many trainings it takes, and how long they will be."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console

from kbatch.driver.options import PROJECT, Options
from kbatch.records import fingerprint, store
from kbatch.space import Space

# Wall-clock seconds per training second (validation, build, first step), and per training besides.
# For the announcement only; chosen by hand from runs on a CPU, not tuned.
WALL_PER_TRAINING_SECOND = 1.35
WALL_PER_TRAINING = 1.5


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
    kept = min(_trainings_kept(folder), trainings)
    minutes = _minutes(options, space, kept, options.seconds_per_trial)
    parts = f"baseline, {trials} trials, {trainings - 1 - trials} to confirm"
    earlier = f", {kept} of them kept from an earlier run" if kept else ""
    console.print(
        f"{trainings} trainings of {options.seconds_per_trial:g} s each ({parts}){earlier}: "
        f"about {minutes:.1f} minutes{_at_most(options)}.",
        highlight=False,
        soft_wrap=True,
    )


def announce_horizon(options: Options, space: Space, seconds: float, console: Console) -> None:
    """Print the horizon that the epochs were found to take, and how many minutes all trainings."""
    minutes = _minutes(options, space, 0, seconds)
    console.print(
        f"Every training gets {seconds:.2f} s: about {minutes:.1f} minutes{_at_most(options)}.",
        highlight=False,
    )


def _at_most(options: Options) -> str:
    """What shortens a search; empty if nothing does."""
    if options.tuner != "kbatch":
        return ""
    alone = " with one worker" if options.has_executor and not options.workers else ""
    return f" at most{alone}, since poor trials are stopped"


def number_of_trials(options: Options, space: Space) -> int:
    """Return how many trials the search makes: no more than the space holds recipes."""
    return min(options.trials, space.size() or options.trials)


def number_of_trainings(options: Options, space: Space) -> int:
    """Return how many trainings the command makes: baseline, trials and confirmations.

    A race may end before; in each of its parts the better half of the recipes goes on.
    """
    return sum(_parts(options, space))


def _parts(options: Options, space: Space) -> list[int]:
    """The trainings of each part, which begins when the one before has ended."""
    trials, looks = number_of_trials(options, space), options.confirm_seeds()
    left, parts = min(options.confirm_top, trials), [1, trials]
    for begun, look in zip((0, *looks), looks, strict=False):
        parts.append((look - begun) * (1 + left))
        left = math.ceil(left / 2)
    return parts


def _trainings_kept(folder: Path) -> int:
    """How many trainings of this search an earlier run has ended."""
    file = folder / PROJECT / fingerprint.FOLDER / store.FILE
    return sum(line.record is not None for line in store.read(file))


def _minutes(options: Options, space: Space, kept: int, seconds: float) -> float:
    """The minutes of all parts, but for the first trainings, which are kept."""
    turns = 0
    for part in _parts(options, space):
        done = min(kept, part)
        kept -= done
        turns += math.ceil((part - done) / (options.workers or 1))
    return turns * (seconds * WALL_PER_TRAINING_SECOND + WALL_PER_TRAINING) / 60
