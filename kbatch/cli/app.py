"""The command line: each command, which imports TensorFlow only when it needs it."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

import kbatch
from kbatch.cli.advise import advise
from kbatch.cli.command import (
    WHOLE,
    PlainGroup,
    new_console,
    print_text,
    told_plainly,
    with_options,
)
from kbatch.cli.doctor import doctor
from kbatch.cli.max_batch import max_batch
from kbatch.cli.recompute import recompute
from kbatch.cli.search_options import DEFAULT_EPOCHS, DEFAULT_SECONDS, CaseOptions, SearchOptions
from kbatch.cli.tune import tune
from kbatch.data import case_study
from kbatch.errors import RecordError, SearchError
from kbatch.records import files
from kbatch.records.store import Record
from kbatch.runtime import device_memory, signals


@with_options(SearchOptions)
def search(options: SearchOptions) -> None:
    """Search how to train your model on your data, and confirm the best with fresh seeds.

    Every trial trains for the same seconds. Its score is the validation accuracy (or the metric you
    name) that it holds above chance, per second. Stop it with Ctrl-C whenever you like: the same
    command goes on where it was.
    """
    if options.seconds_per_trial is None and options.epochs is None:
        options = dataclasses.replace(options, epochs=DEFAULT_EPOCHS)
    with told_plainly(options.out):
        from kbatch.cli import search_run
        from kbatch.cli.task import task_of

        search_run.run(*task_of(options), new_console())


@with_options(CaseOptions)
def cats_vs_dogs(options: CaseOptions) -> None:
    """Search how to train the cats-vs-dogs model, and confirm the best recipes with fresh seeds.

    Every trial trains for the same seconds. Its score is the validation accuracy that it holds
    above chance, per second. Stop it with Ctrl-C whenever you like: the same command goes on where
    it was.
    """
    if options.seconds_per_trial is None and options.epochs is None:
        options = dataclasses.replace(options, seconds_per_trial=DEFAULT_SECONDS)
    with told_plainly(options.out):
        from kbatch.cli import search_run
        from kbatch.cli.task import task_of_case_study

        search_run.run(*task_of_case_study(options), new_console())


def report(
    directory: Annotated[str, typer.Argument(help="Folder of a search, or what --out was.")],
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
) -> None:
    """Write the page, tables and figures of a search again. Needs no TensorFlow."""
    with told_plainly():
        with signals.at_once():
            from kbatch.results import page
            from kbatch.results.report import report as report_of
            from kbatch.results.report import write

        files = [*write(directory), page.write(directory)]
        # Names of files and hyperparameters may look like rich's markup.
        new_console().print(
            str(report_of(directory)), highlight=False, markup=False, soft_wrap=True
        )
        print("Written: " + ", ".join(str(file) for file in files))
        if open_page:
            _open(files[-1])


def _open(page: Path) -> None:
    address = page.resolve().as_uri()
    if not webbrowser.open(address):
        print(f"There is no browser here. Open {address}")


def compare(
    directory_a: Annotated[str, typer.Argument(help="Folder of a search, or what --out was.")],
    directory_b: Annotated[str, typer.Argument(help="Folder of the other search.")],
) -> None:
    """Compare two searches: on two machines, or before and after a change. Needs no TensorFlow."""
    with told_plainly():
        with signals.at_once():
            from kbatch.results.comparison import compare as compared
        print_text(f"{compared(directory_a, directory_b)}\n")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of `kbatch export`, which `--help` explains."""

    directory: Annotated[str, typer.Argument(help="Folder of a search, or what --out was.")]
    best: Annotated[
        bool, typer.Option("--best", help="The best recipe; so it is without an option.")
    ] = False
    trial: Annotated[
        int | None, typer.Option(**WHOLE, help="The recipe of a trial, by its number.")
    ] = None
    baseline: Annotated[bool, typer.Option("--baseline", help="The recipe of the baseline.")] = (
        False
    )
    out: Annotated[
        str | None,
        typer.Option(
            show_default="standard output", help="File to write, which must not exist yet."
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Write over the file of --out if it exists.")
    ] = False

    def check(self) -> None:
        """Refuse options that contradict each other."""
        named = [
            *(["--best"] if self.best else []),
            *([f"--trial {self.trial}"] if self.trial is not None else []),
            *(["--baseline"] if self.baseline else []),
        ]
        if len(named) > 1:
            raise SearchError(
                "One recipe must be named to export", " and ".join(named), "Leave the others out"
            )
        if self.force and self.out is None:
            raise SearchError(
                "--force must come with --out", "--force alone", "Name the file with --out"
            )


@with_options(ExportOptions)
def export(options: ExportOptions) -> None:
    """Write plain Keras code that trains a recipe of a search without kbatch.

    Model and data are in the code where the records know them; else they are marked with TODO.
    Needs no TensorFlow.
    """
    with told_plainly():
        options.check()
        with signals.at_once():
            from kbatch.results.export import code_of
        code = code_of(options.directory, _record(options))
        if options.out is None:
            print_text(code)
            return
        file = Path(options.out)
        if file.exists() and (not options.force or not file.is_file()):
            do = "Name another file, or pass --force" if file.is_file() else "Name a file"
            raise RecordError("--out must be a file that does not exist yet", str(file), do)
        files.write(file, code)
        print(f"Written: {file}")


def _record(options: ExportOptions) -> Record:
    from kbatch.results.ranking import baseline_training, best_training, trial_training

    if options.baseline:
        return baseline_training(options.directory)
    if options.trial is not None:
        return trial_training(options.directory, options.trial)
    return best_training(options.directory)


NAMES = Literal["optimizers", "augmentation", "techniques", "throughput", "generalisation"]


def study(
    name: Annotated[NAMES, typer.Argument(help="The published table to make again.")],
    out: Annotated[str, typer.Option(help="Folder of the results; the same command resumes.")],
    data: Annotated[
        str,
        typer.Option(help="'drawn', 'tfds', or a folder or zip with two folders of photographs."),
    ] = "drawn",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A few minutes: fewer and smaller pictures, no claims."),
    ] = False,
    image_size: Annotated[
        int | None, typer.Option(**WHOLE, show_default="as published", help="Height and width.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(**WHOLE, show_default="as published", help="Passes.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(**WHOLE, show_default="3", help="Seeds of every cell.")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Bytes that the device may use, such as 8GB.")
    ] = None,
) -> None:
    """Make a published table on batch size again, on this machine and these pictures.

    Each cell is a training that is kept: the same command goes on after Ctrl-C. The page says
    beside each published claim whether it holds here.
    """
    with told_plainly(stopped=f" What was trained is kept in {out}: the same command goes on."):
        folder = Path(out)
        case_study.check(data)
        limit_bytes = None if memory_limit is None else device_memory.bytes_of(memory_limit)
        _make(folder)
        with signals.at_once(), signals.turned_away():
            from kbatch.cli.search_run import import_tensorflow, start_tensorflow
            from kbatch.studies import study_run
            from kbatch.studies.cell import Wishes
            from kbatch.studies.study_run import STUDIES
        wishes = Wishes(image_size=image_size, epochs=epochs, seeds=seeds, memory_limit=limit_bytes)
        chosen = STUDIES[name]
        setting = wishes.applied(
            chosen.quick if quick else chosen.published, chosen.takes, chosen.least_image_size
        )
        if "memory_limit" not in chosen.takes:  # else each cell has a process of its own
            import_tensorflow()
            start_tensorflow()
        console = new_console()
        pictures = case_study.pictures(data, setting.image_size)
        facts = [f"command: kbatch {shlex.join(sys.argv[1:])}"]
        files = study_run.run(chosen, setting, pictures, folder, facts, console)
        console.print(files[-1].read_text(), highlight=False, soft_wrap=True)
        console.print("Written: " + ", ".join(map(str, files)), highlight=False, soft_wrap=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise SearchError(
            "--out must be a folder that can be written", f"{folder}: {error}", "Pass another"
        ) from error


QUESTION = (
    "Which way of training this model on this device buys the most validation accuracy per second?"
)

app = typer.Typer(
    cls=PlainGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=QUESTION,
)


def _print_version(given: bool) -> None:
    if given:
        print(f"kbatch {kbatch.__version__}")
        raise typer.Exit


@app.callback(help=QUESTION)
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version and leave.",
        ),
    ] = False,
) -> None:
    """Run one of the commands."""


app.command("tune", context_settings={"allow_interspersed_args": False})(tune)
app.command("search")(search)
app.command("cats-vs-dogs")(cats_vs_dogs)
app.command("max-batch")(max_batch)
app.command("recompute")(recompute)
app.command("report")(report)
app.command("compare")(compare)
app.command("export")(export)
app.command("study")(study)
app.command("advise")(advise)
app.command("doctor")(doctor)
