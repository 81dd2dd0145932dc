"""Driver: the case study from pictures to claim, resumable at every moment."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shlex
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from kbatch.case_study import limits, sources
from kbatch.case_study.options import PROJECT, Options
from kbatch.memory._micro_batch import MaxBatches
from kbatch.records import atomic_file, fingerprint, store
from kbatch.records.lock import Lock
from kbatch.results import report
from kbatch.runtime import ctrl_c, quiet_import
from kbatch.space import Space

if TYPE_CHECKING:
    from kbatch.case_study.pictures import Pictures

# validation, build, first step; on a CPU, for the announcement only
WALL_PER_TRAINING_SECOND = 1.35


def run(options: Options, console: Console) -> None:
    """Search, confirm and report.

    Args:
        options: What was asked for.
        console: Where to print.

    Raises:
        KbatchError: If something the user gave cannot be used.
    """
    options.check()
    options.space()
    sources.check(options.data)
    folder = options.ready_folder()
    records = folder / PROJECT / fingerprint.FOLDER
    with Lock(records):
        options = options.as_begun(fingerprint.load(records) or {})
        space = options.space()
        _announce(options, space, folder, console)
        found_limits = limits.of_options(options, space, folder, console)
        _import_tensorflow()
        found = _pictures(options, console)
        _search_and_confirm(
            options, _held_by(found, options, space, console), found_limits, found, folder, console
        )
        files = report.write(folder)
    show(folder, console)
    console.print(
        "Written: " + ", ".join(str(file) for file in files), highlight=False, soft_wrap=True
    )


def show(folder: Path | str, console: Console) -> None:
    """Print the table of recipes by score and what may be claimed.

    Args:
        folder: A folder that holds the records of a search.
        console: Where to print.
    """
    console.print(str(report.report(folder)), highlight=False, markup=False, soft_wrap=True)


def _announce(options: Options, space: Space, folder: Path, console: Console) -> None:
    if options.tuner == "grid":
        console.print(
            f"The grid holds {space.size()} recipes, of which {_trials(options, space)} are tried, batch size varying first."
        )
    trainings = _trainings(options, space)
    if options.seconds_per_trial:
        kept = min(_kept(folder), trainings)
        minutes = _minutes(trainings - kept, options.seconds_per_trial)
        earlier = f", {kept} of them kept from an earlier run" if kept else ""
        console.print(
            f"{trainings} trainings of {options.seconds_per_trial:g} s each (baseline, {_trials(options, space)} trials, "
            f"{trainings - 1 - _trials(options, space)} to confirm){earlier}: about {minutes:.1f} minutes.",
            highlight=False,
            soft_wrap=True,
        )
    else:
        console.print(
            f"{trainings} trainings, each as long as {options.epochs} epochs of the baseline; that is measured first.",
            highlight=False,
        )


def _kept(folder: Path) -> int:
    """How many trainings of this search an earlier run has ended."""
    return sum(
        line.record is not None
        for line in store.read(folder / PROJECT / fingerprint.FOLDER / store.FILE)
    )


def _minutes(trainings: int, seconds: float) -> float:
    return trainings * (seconds * WALL_PER_TRAINING_SECOND + 1.5) / 60


def _trials(options: Options, space: Space) -> int:
    return min(options.trials, space.size() or options.trials)


def _trainings(options: Options, space: Space) -> int:
    trials = _trials(options, space)
    return 1 + trials + options.confirm * (1 + min(options.confirm_top, trials))


def _import_tensorflow() -> None:
    """Import TensorFlow without its greetings, on a CPU that can tell its bytes."""
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
    warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
    with ctrl_c.at_once(), quiet_import.turned_away():
        import tensorflow as tf

        import kbatch.hypermodel

        tf.config.list_logical_devices()
        assert kbatch.hypermodel


def _pictures(options: Options, console: Console) -> Pictures:
    from kbatch.case_study.pictures import PER_CLASS

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("pictures", total=2 * PER_CLASS)
        found = sources.pictures(
            options.data,
            options.image_size,
            options.seed,
            lambda count: progress.update(task, completed=count),
        )
    train, validation, test = (
        f"{len(part[1]):,}" for part in (found.train, found.validation, found.test)
    )
    sizes = f"{train} to train, {validation} to validate, {test} to test"
    console.print(
        f"Data: {found.name}, {options.image_size} px: {sizes}.", highlight=False, soft_wrap=True
    )
    if found.skipped:
        console.print(
            f"{len(found.skipped)} files could not be read and were skipped: {', '.join(found.skipped)}",
            highlight=False,
            soft_wrap=True,
        )
    return found


def _held_by(found: Pictures, options: Options, space: Space, console: Console) -> Space:
    """The space without those of the default batch sizes that the data do not hold; sizes that the user named stay, and are refused."""
    examples = len(found.train[1])
    sizes = tuple(size for size in space.batch_size if size <= examples)
    if "batch_size" in options.axes or sizes == space.batch_size:
        return space
    console.print(
        f"Batch sizes above the {examples} examples to train on are left out.",
        style="yellow",
        highlight=False,
    )
    return dataclasses.replace(space, batch_size=sizes)


def _note_run(options: Options, found: Pictures, folder: Path) -> None:
    """What the report says of the run, kept so that `kbatch report` can say it again."""
    flags = shlex.join(
        text
        for name, value in options.told().items()
        if value is not None
        for text in (f"--{name}", str(value))
    )
    notes: dict[str, Any] = {
        "command": f"kbatch cats-vs-dogs {flags}",
        "data": found.name,
        "model": options.model,
        "skipped": list(found.skipped),
    }
    atomic_file.write(folder / report.RUN_FILE, json.dumps(notes, indent=1))


def _search_and_confirm(
    options: Options,
    space: Space,
    max_batch: MaxBatches,
    found: Pictures,
    folder: Path,
    console: Console,
) -> None:
    from kbatch.case_study.live import Live
    from kbatch.case_study.tuners import opened
    from kbatch.hypermodel import HyperModel
    from kbatch.training.confirmation import confirm
    from kbatch.training.project import Project

    hypermodel = HyperModel(
        functools.partial(limits.model, options.model, options.image_size),
        space,
        loss="binary_crossentropy",
        metrics=["accuracy"],
        seconds_per_trial=options.seconds_per_trial,
        target=options.target,
        seed=options.seed,
        max_batch=max_batch,
    )
    fit_arguments: dict[str, Any] = {"validation_data": found.validation, "verbose": 0}
    if options.epochs is not None:
        fit_arguments["epochs"] = options.epochs
    project = Project(folder / PROJECT)
    project.check_complete()
    project.agree(
        {"model": options.model, "image_size": options.image_size, "tuner": options.tuner}
    )
    if options.epochs is not None and "goal" not in project.facts():
        console.print("Measuring the baseline's updates for the horizon …")
    goal = hypermodel.terms.open(project, found.train, fit_arguments).goal
    if options.epochs is not None:
        minutes = _minutes(_trainings(options, space), goal.seconds)
        console.print(
            f"Every training gets {goal.seconds:.2f} s: about {minutes:.1f} minutes.",
            highlight=False,
        )
    _note_run(options, found, folder)
    tuner, aside = opened(options.tuner, hypermodel, options.trials, folder, options.seed)
    if aside:
        console.print(
            f"KerasTuner's files could not be read and were moved to {aside}; the records were kept.",
            style="yellow",
            soft_wrap=True,
        )
    with Live(
        console,
        _trials(options, space),
        _trainings(options, space),
        goal.seconds,
        project.store.records(),
    ) as live:
        hypermodel.watcher = live
        tuner.search(*found.train, **fit_arguments)
        if options.confirm:
            confirm(
                tuner,
                *found.train,
                top=options.confirm_top,
                seeds=options.confirm,
                test_data=found.test,
                **fit_arguments,
            )
