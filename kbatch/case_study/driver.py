"""The driver of the case study: from pictures to a claim, resumable at every moment."""

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
from kbatch.case_study.announcement import (
    announce,
    announce_horizon,
    number_of_trainings,
    number_of_trials,
)
from kbatch.case_study.options import PROJECT, Options
from kbatch.memory._micro_batch import MaxBatches
from kbatch.page import files as page
from kbatch.page.live_page import LivePage, at_rest
from kbatch.records import atomic_file, fingerprint
from kbatch.records.lock import Lock
from kbatch.results import report
from kbatch.runtime import ctrl_c, quiet_import
from kbatch.space import Space

if TYPE_CHECKING:
    from kbatch.case_study.pictures import Pictures
    from kbatch.hypermodel import HyperModel
    from kbatch.training.search import Search


def run(options: Options, console: Console) -> None:
    """Search, confirm and report.

    Args:
        options: The options of the command.
        console: Console to print to.

    Raises:
        KbatchError: If an option or the data cannot be used.
    """
    options.check()
    options.space()
    sources.check(options.data)
    folder = options.ready_folder()
    records = folder / PROJECT / fingerprint.FOLDER
    with at_rest(folder), Lock(records):
        options = options.as_begun(fingerprint.load(records) or {})
        space = options.space()
        announce(options, space, folder, console)
        max_batch = limits.of_options(options, space, folder, console)
        _import_tensorflow()
        pictures = _load_pictures(options, console)
        space = _without_large_batches(space, pictures, options, console)
        _search_and_confirm(options, space, max_batch, pictures, folder, console)
        files = report.write(folder)
    files.append(page.write(folder))  # after the lock, which tells that the search has ended
    console.print(str(report.report(folder)), highlight=False, markup=False, soft_wrap=True)
    console.print(
        "Written: " + ", ".join(str(file) for file in files), highlight=False, soft_wrap=True
    )


def _import_tensorflow() -> None:
    """Import TensorFlow quietly, on a CPU with an allocator that counts its bytes.

    Beside a GPU that allocator would limit the memory of the host, where batches wait.
    """
    warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
    with ctrl_c.at_once(), quiet_import.turned_away():
        import tensorflow as tf

        import kbatch.hypermodel  # noqa: F401  so that all of it is imported quietly

        if not tf.config.list_physical_devices("GPU"):
            # TensorFlow reads it when it makes its first allocator
            os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
        tf.config.list_logical_devices()
    from kbatch.device import meter

    meter.tell_of_unused_card()


def _load_pictures(options: Options, console: Console) -> Pictures:
    """Load the pictures below a progress bar, and print how many there are."""
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
        pictures = sources.pictures(
            options.data,
            options.image_size,
            options.seed,
            lambda count: progress.update(task, completed=count),
        )
    train, validation, test = (
        f"{len(labels):,}" for _, labels in (pictures.train, pictures.validation, pictures.test)
    )
    console.print(
        f"Data: {pictures.name}, {options.image_size} px: "
        f"{train} to train, {validation} to validate, {test} to test.",
        highlight=False,
        soft_wrap=True,
    )
    if pictures.skipped:
        console.print(
            f"{len(pictures.skipped)} files could not be read and were skipped: "
            f"{', '.join(pictures.skipped)}",
            highlight=False,
            soft_wrap=True,
        )
    return pictures


def _without_large_batches(
    space: Space, pictures: Pictures, options: Options, console: Console
) -> Space:
    """The space without the default batch sizes that are larger than the data.

    Sizes that the user named stay, and are refused later.
    """
    examples = len(pictures.train[1])
    sizes = tuple(size for size in space.batch_size if size <= examples)
    if "batch_size" in options.axes or sizes == space.batch_size:
        return space
    console.print(
        f"Batch sizes above the {examples} examples to train on are left out.",
        style="yellow",
        highlight=False,
    )
    return dataclasses.replace(space, batch_size=sizes)


def _search_and_confirm(
    options: Options,
    space: Space,
    max_batch: MaxBatches,
    pictures: Pictures,
    folder: Path,
    console: Console,
) -> None:
    """Train the baseline, the trials and the confirmations that the project does not have yet."""
    from kbatch.case_study.live import Live
    from kbatch.case_study.tuners import opened
    from kbatch.training.confirmation import confirm

    hypermodel = _hypermodel(options, space, max_batch)
    fit_arguments: dict[str, Any] = {"validation_data": pictures.validation, "verbose": 0}
    if options.epochs is not None:
        fit_arguments["epochs"] = options.epochs
    # Refuses a search other than the project's before KerasTuner's files are touched.
    search = _open_search(hypermodel, options, pictures, fit_arguments, folder, console)
    if options.epochs is not None:
        announce_horizon(options, space, search.goal.seconds, console)
    _note_run(options, pictures, folder)
    tuner, set_aside = opened(options.tuner, hypermodel, options.trials, folder, options.seed)
    if set_aside:
        console.print(
            f"KerasTuner's files could not be read and were moved to {set_aside}; "
            "the records were kept.",
            style="yellow",
            soft_wrap=True,
        )
    with Live(
        console,
        number_of_trials(options, space),
        number_of_trainings(options, space),
        search.goal.seconds,
        search.project.store.records(),
    ) as live:
        hypermodel.watcher = LivePage(folder, live)
        tuner.search(*pictures.train, **fit_arguments)
        if options.confirm:
            confirm(
                tuner,
                *pictures.train,
                top=options.confirm_top,
                seeds=options.confirm,
                test_data=pictures.test,
                **fit_arguments,
            )


def _hypermodel(options: Options, space: Space, max_batch: MaxBatches) -> HyperModel:
    from kbatch.hypermodel import HyperModel

    return HyperModel(
        functools.partial(limits.model, options.model, options.image_size),
        space,
        loss="binary_crossentropy",
        metrics=["accuracy"],
        seconds_per_trial=options.seconds_per_trial,
        target=options.target,
        seed=options.seed,
        max_batch=max_batch,
    )


def _open_search(
    hypermodel: HyperModel,
    options: Options,
    pictures: Pictures,
    fit_arguments: dict[str, Any],
    folder: Path,
    console: Console,
) -> Search:
    """Open the search, which `tuner.search` and `confirm` then take as it is."""
    from kbatch.training.project import Project

    project = Project(folder / PROJECT)
    project.check_complete()
    project.agree(
        {"model": options.model, "image_size": options.image_size, "tuner": options.tuner}
    )
    if options.epochs is not None and "goal" not in project.facts():
        console.print("Measuring the baseline's updates for the horizon …")
    return hypermodel.prepared.open(project, *pictures.train, **fit_arguments)


def _note_run(options: Options, pictures: Pictures, folder: Path) -> None:
    """Keep the command and the data for the report, which `kbatch report` may write again."""
    flags = []
    for name, value in options.told().items():
        if value is not None:
            flags += [f"--{name}", str(value)]
    notes: dict[str, Any] = {
        "command": f"kbatch cats-vs-dogs {shlex.join(flags)}",
        "data": pictures.name,
        "model": options.model,
        "skipped": list(pictures.skipped),
    }
    atomic_file.write(folder / report.RUN_FILE, json.dumps(notes, indent=1))
