"""A search from the command line, from its data to its report."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import json
import os
import shlex
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from kbatch.cli.live import (
    Live,
    announce,
    announce_horizon,
    number_of_trials,
    trainings_ahead,
)
from kbatch.cli.search_options import PROJECT, CommonOptions
from kbatch.cli.task import Searched, Task
from kbatch.data.examples import Examples
from kbatch.errors import DataError, NoMemoryLimitError, SearchError
from kbatch.memory._max_batch import Row, Table
from kbatch.memory._micro_batch import MaxBatches
from kbatch.memory._table import max_batches
from kbatch.records import files, project
from kbatch.records.files import Lock
from kbatch.results import page, report
from kbatch.results.page import at_rest
from kbatch.results.ranking import all_were_stopped
from kbatch.runtime import device, device_memory, signals
from kbatch.runtime.nvidia import may_use_card
from kbatch.space import Space
from kbatch.training.progress import LivePage

if TYPE_CHECKING:
    import keras_tuner

    from kbatch.hypermodel import HyperModel
    from kbatch.training.search import Search


ENDINGS = (".html", ".md", ".csv", ".png", ".json", ".jsonl")  # of what commands write there
LONGEST_NAME = 200  # characters of a file's path below --out, for the system's limit on a path


def ready(out: str) -> Path:
    """Make the folder of the results, and return it."""
    folder = Path(out)
    try:
        out.encode("utf-8")  # TensorFlow takes no other names
        (folder / PROJECT / ("x" * LONGEST_NAME)).exists()  # raises if the path is too long
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except ValueError as error:
        raise SearchError(
            "--out must be the name of a folder, in UTF-8", repr(out), "Pass another folder"
        ) from error
    except OSError as error:
        received = f"{folder}: {error.strerror or error}"
        raise files.disk_trouble(error) or SearchError(
            "--out must be a folder that can be written", received, "Pass another folder"
        ) from error
    files.check_no_linked_files(folder, ENDINGS)
    files.check_no_link(folder / PROJECT)
    files.check_no_links(folder / PROJECT)
    return folder


def run(options: CommonOptions, task: Task, console: Console) -> None:
    """Search, confirm and report, by options that were checked."""
    options.space()
    folder = ready(options.out)
    records = folder / PROJECT / project.FOLDER
    with at_rest(folder), Lock(records):
        options = options.as_begun(project.load_facts(records) or {})
        search = SearchRun(options, task, options.space(), folder, console)
        announce(options, search.space, folder, console)
        max_batch = search.max_batch()
        import_tensorflow()
        if options.in_workers:
            _leave_gpus_to_workers()
        start_tensorflow()
        searched = task.searched(load(task, console))
        if searched.words:
            console.print(searched.words, highlight=False, soft_wrap=True)
        search = search.without_large_batches(searched.examples)
        search.search_and_confirm(searched, max_batch)
        files = report.write(folder)
    files.append(page.write(folder))  # after the lock, which tells that the search has ended
    console.print(str(report.report(folder)), highlight=False, markup=False, soft_wrap=True)
    console.print(
        "Written: " + ", ".join(str(file) for file in files), highlight=False, soft_wrap=True
    )


def import_tensorflow() -> None:
    """Import TensorFlow and all that a search needs, quietly."""
    warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
    with signals.at_once(), signals.turned_away():
        import tensorflow as tf  # noqa: F401

        import kbatch.hypermodel  # noqa: F401


def start_tensorflow() -> None:
    """Let TensorFlow set up its devices quietly, a CPU with an allocator that counts its bytes.

    Beside a GPU that allocator would limit the memory of the host, where batches wait.
    """
    import tensorflow as tf

    with signals.at_once(), signals.turned_away():
        if not tf.config.list_physical_devices("GPU"):
            # TensorFlow reads it when it makes its first allocator
            os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
        tf.config.list_logical_devices()
    device_memory.tell_of_unused_card()


def _leave_gpus_to_workers() -> None:
    """Hide the GPUs before the first operation of TensorFlow, such as of the user's data."""
    device.leave_gpus_to_workers()


def load(task: Task, console: Console) -> Examples:
    """Load the data below a progress bar, and print how much there is."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(
            "pictures" if task.source.images else "examples", total=task.source.total
        )
        examples = task.source.load(lambda count: progress.update(bar, completed=count))
    size = f", {task.size}" if task.size else ""
    console.print(
        f"Data: {examples.name}{size}: {examples.sizes}.", highlight=False, soft_wrap=True
    )
    if examples.skipped:
        console.print(
            f"{len(examples.skipped)} files could not be read and were skipped: "
            f"{', '.join(examples.skipped)}",
            highlight=False,
            soft_wrap=True,
        )
    for note in examples.notes:
        console.print(note, style="yellow", highlight=False, soft_wrap=True)
    return examples


@dataclass(frozen=True)
class SearchRun:
    """One run of a search: its options, model and data, where it writes, and whom it tells."""

    options: CommonOptions
    task: Task
    space: Space
    folder: Path
    console: Console

    def max_batch(self) -> MaxBatches:
        """Return the limit of `--max-batch`: none, a number, or a table that is measured once."""
        if self.options.max_batch != "auto":
            return self.options.max_batch_number()
        facts = project.load_facts(self.folder / PROJECT / project.FOLDER) or {}
        table = Table.of_project(self.folder / PROJECT)
        if table is not None:
            return table
        if "max_batch" in facts and facts["max_batch"] is None:
            return None  # the project was begun on a machine without a limit
        if not has_limit():
            self.console.print(
                "This CPU has no memory limit, so batch sizes are not checked beforehand "
                "(see `kbatch doctor`).",
                style="dim",
                highlight=False,
                soft_wrap=True,
            )
            return None
        try:
            table = self._table()
        except NoMemoryLimitError:
            self.console.print(
                "TensorFlow has no device with a memory limit here, so batch sizes are not checked "
                "beforehand.",
                style="dim",
                highlight=False,
                soft_wrap=True,
            )
            return None
        self.console.print(str(table), highlight=False, soft_wrap=True)
        return table

    def _table(self) -> Table:
        """Measure the table, and print each row as soon as it is known."""

        def show(row: Row) -> None:
            self.console.print(f"  {row}", highlight=False)

        with self.console.status("Finding the largest batch of every policy and optimizer …"):
            return max_batches(
                self.task.spec,
                self.task.example,
                space=self.space,
                ceiling=max(self.space.batch_size),
                on_row=show,
            )

    def without_large_batches(self, data: Examples) -> SearchRun:
        """Return it without the default batch sizes that are larger than the data.

        Sizes that the user named stay, and are refused later.
        """
        examples, space = len(data.train[1]), self.space
        least = space.baseline.batch_size
        if examples < least:
            raise DataError(
                f"At least {least} examples must be there to train on, the batch size of the "
                "baseline",
                f"{examples} to train on",
                "Add examples",
            )
        sizes = tuple(size for size in space.batch_size if size <= examples)
        if "batch_size" in self.options.axes or sizes == space.batch_size:
            return self
        self.console.print(
            f"Batch sizes above the {examples} examples to train on are left out.",
            style="yellow",
            highlight=False,
        )
        return dataclasses.replace(self, space=dataclasses.replace(space, batch_size=sizes))

    def search_and_confirm(self, searched: Searched, max_batch: MaxBatches) -> None:
        """Train what the project does not have yet: baseline, trials and confirmations."""
        from kbatch.training.confirmation import confirm

        options, space, console = self.options, self.space, self.console
        hypermodel, examples = self.hypermodel(searched, max_batch), searched.examples
        fit_arguments: dict[str, Any] = {"validation_data": examples.validation, "verbose": 0}
        if options.epochs is not None:
            fit_arguments["epochs"] = options.epochs
        if options.tensorboard:
            fit_arguments["callbacks"] = [_tensorboard(self.folder)]
        # Refuses a search other than the project's before KerasTuner's files are touched.
        search = self._open(hypermodel, searched, fit_arguments)
        records, seconds = search.project.store.records(), search.goal.seconds
        if options.epochs is not None:
            announce_horizon(options, space, seconds, records, console)
        self._note(examples)
        tuner, aside = opened(options.tuner, hypermodel, options.trials, self.folder, options.seed)
        if aside:
            console.print(
                f"KerasTuner's files could not be read and were moved to {aside}; "
                "the records were kept.",
                style="yellow",
                soft_wrap=True,
            )
        ahead = trainings_ahead(options, space, seconds, records, hypermodel.terms.workers)
        with Live(console, number_of_trials(options, space), ahead, records) as live:
            hypermodel.watcher = LivePage(self.folder, live)
            ends = ending(options.tuner, number_of_trials(options, space))
            tuner.search(*examples.train, **fit_arguments, **ends)
            if options.confirm_seeds() and all_were_stopped(search.project.store.records()):
                console.print(
                    "No trial reached the horizon, so there is nothing to confirm: keep the "
                    "baseline, or pass more --trials.",
                    style="yellow",
                    soft_wrap=True,
                )
            elif options.confirm_seeds():
                confirm(
                    tuner,
                    *examples.train,
                    top=options.confirm_top,
                    seeds=options.confirm_seeds(),
                    test_data=examples.test,
                    **fit_arguments,
                )

    def hypermodel(self, searched: Searched, max_batch: MaxBatches) -> HyperModel:
        """Return the hypermodel of the search, which trains where the options say."""
        from kbatch.hypermodel import HyperModel
        from kbatch.training.workers import LocalExecutor, RayExecutor

        options = self.options
        hypermodel = HyperModel(
            searched.spec,
            self.space,
            metric=searched.metric,
            direction=searched.direction,
            chance=searched.chance,
            seconds_per_trial=options.seconds_per_trial,
            target=options.target,
            max_batch=max_batch,
            isolated=options.isolated,
        )
        if options.has_executor:
            kind = RayExecutor if options.executor == "ray" else LocalExecutor
            hypermodel.train_in(kind(options.workers))
        return hypermodel

    def _open(
        self, hypermodel: HyperModel, searched: Searched, fit_arguments: dict[str, Any]
    ) -> Search:
        """Open the search, which `tuner.search` and `confirm` then take as it is."""
        from kbatch.records.project import Project

        options, project = self.options, Project(self.folder / PROJECT)
        project.check_complete()
        project.agree(
            {
                "model": options.model,
                "image_size": options.image_size,
                "tuner": options.tuner,
                **dict(searched.facts),
            }
        )
        if options.epochs is not None and "goal" not in project.facts():
            self.console.print("Measuring the baseline's updates for the horizon …")
        return hypermodel.prepared.open(project, *searched.examples.train, **fit_arguments)

    def _note(self, examples: Examples) -> None:
        """Keep the command and the data for the report, which `kbatch report` may write again."""
        flags = []
        for name, value in self.options.told().items():
            if value is True:
                flags.append(f"--{name}")
            elif value is not None and value is not False:
                flags += [f"--{name}", str(value)]
        notes: dict[str, Any] = {
            "command": f"{self.task.command} {shlex.join(flags)}",
            "data": examples.name,
            "model": self.options.model,
            "skipped": list(examples.skipped),
        }
        files.write(self.folder / report.RUN_FILE, json.dumps(notes, indent=1))


def _tensorboard(folder: Path) -> Any:
    """The callback of `--tensorboard`."""
    from keras.callbacks import TensorBoard

    return TensorBoard(folder / "tensorboard", write_graph=False)


def has_limit() -> bool:
    """Return whether the training device has a memory limit, without asking TensorFlow."""
    return may_use_card() or os.environ.get(device_memory.CPU_LIMIT, "").isdigit()


# The Gaussian process takes about a third of the variance of normalized scores for noise. Of 69
# recipes of the case study, each trained with two seeds (photographs, 20 s, one core), the rankings
# of the two seeds correlate at 0.5 only.
SCORE_NOISE = 0.3


def tuner_of(
    kind: str, hypermodel: HyperModel, trials: int, folder: Path, seed: int
) -> keras_tuner.Tuner:
    """Return a tuner over the hypermodel, in the folder `search`."""
    import keras_tuner

    from kbatch.hypermodel import objective
    from kbatch.tuner import Tuner

    if kind == "kbatch":
        with contextlib.redirect_stdout(io.StringIO()):  # as below
            return Tuner(hypermodel, directory=str(folder), project_name=PROJECT, tuner_seed=seed)
    common = {
        "objective": objective(),
        "max_trials": trials,
        "directory": str(folder),
        "project_name": PROJECT,
    }
    common["seed"] = seed + 1  # KerasTuner takes 0 for no seed at all
    with contextlib.redirect_stdout(io.StringIO()):  # "Reloading Tuner from …"
        if kind == "bayesian":
            return keras_tuner.BayesianOptimization(
                hypermodel, num_initial_points=max(3, trials // 3), alpha=SCORE_NOISE, **common
            )
        return {"random": keras_tuner.RandomSearch, "grid": keras_tuner.GridSearch}[kind](
            hypermodel, **common
        )


def ending(kind: str, trials: int) -> dict[str, int]:
    """Return the arguments that end the search of a tuner: stock ones were told when made."""
    return {"max_trials": trials} if kind == "kbatch" else {}


def opened(
    kind: str, hypermodel: HyperModel, trials: int, folder: Path, seed: int
) -> tuple[keras_tuner.Tuner, Path | None]:
    """Return the tuner, and the folder that broken files of KerasTuner were moved to, or `None`.

    KerasTuner writes its files in place, so a process that is killed may leave half a file, on
    which it cannot start. The records and the kept weights stay. With the same seed it draws the
    same trials again, which the records answer.
    """
    from kbatch.tuner import go_through

    project = folder / PROJECT
    aside = None if files.first_broken(project) is None else set_aside(project)
    if aside is None and files.found(project):
        # KerasTuner raises errors of any kind on states that it did not write.
        with contextlib.suppress(Exception):
            tuner = tuner_of(kind, hypermodel, trials, folder, seed)
            go_through(tuner.oracle, hypermodel)
            return tuner, None
        aside = set_aside(project)
    return tuner_of(kind, hypermodel, trials, folder, seed), aside


def set_aside(project: Path) -> Path:
    """Move KerasTuner's own files out of the way."""
    name = f"set-aside-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    aside, number = project / name, 0
    while aside.exists():
        number += 1
        aside = project / f"{name}-{number}"
    try:
        for file in files.found(project):
            target = aside / file.relative_to(project)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
    except OSError as error:
        raise files.refusal(error) from error
    return aside
