"""Tune: a training script of the user's is searched as it is, without a line changed."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kbatch.cli.command import NUMBER, WHOLE, AxisOptions, told_plainly, with_options
from kbatch.cli.search_options import (
    AXIS_OPTIONS,
    CHANCE_OPTION,
    DIRECTION,
    ISOLATED,
    METRIC,
    axis_arguments,
)
from kbatch.errors import KbatchError, SearchError
from kbatch.records import files

if TYPE_CHECKING:
    from kbatch.standin.fit_call import FitCall
    from kbatch.standin.search_call import TunerTaker
    from kbatch.standin.tuned import Found
    from kbatch.standin.users_script import UsersScript

TUNE_AXES = AxisOptions(
    {
        name: dataclasses.replace(option, default=None, default_words="as in kbatch.tune")
        for name, option in AXIS_OPTIONS.by_axis.items()
    }
)
FOLDER = "kbatch-tune"


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """The options of `kbatch tune`, which `--help` explains."""

    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT [ARGS]...", help="Your script, and what it is given."),
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(
            show_default="10min, unless --trials",
            help="Time for search and confirmation, such as 90s, 10min or 2h.",
        ),
    ] = None
    seconds_per_trial: Annotated[
        float | None,
        typer.Option(
            **NUMBER,
            show_default="as long as the script trains, at most a 24th of the budget",
            help="Training seconds of every trial.",
        ),
    ] = None
    trials: Annotated[int | None, typer.Option(**WHOLE, help="The most recipes to try.")] = None
    fit: Annotated[
        int | None,
        typer.Option(
            **WHOLE,
            show_default="the one with most epochs",
            help="Which call of fit is tuned, counted from 1; the others train as they are.",
        ),
    ] = None
    module: Annotated[
        str | None, typer.Option(help="Module to run, as by python -m, instead of a script.")
    ] = None
    train: Annotated[
        bool,
        typer.Option(
            "--train", help="Then train by what won, and run the rest of the script with it."
        ),
    ] = False
    check: Annotated[
        bool, typer.Option("--check", help="Only say what is taken of the script, and stop.")
    ] = False
    validation_split: Annotated[
        float | None,
        typer.Option(**NUMBER, help="Share to validate on, for a script that does not validate."),
    ] = None
    metric: Annotated[str | None, METRIC] = None
    direction: Annotated[Literal["max", "min"] | None, DIRECTION] = None
    chance: Annotated[float | None, CHANCE_OPTION] = None
    confirm: Annotated[
        int, typer.Option(**WHOLE, help="Fresh seeds per recipe for the confirmation; 0 skips it.")
    ] = 3
    seed: Annotated[int, typer.Option(**WHOLE, help="Seed of weights, order and search.")] = 0
    isolated: Annotated[bool, ISOLATED] = False
    out: Annotated[
        str | None,
        typer.Option(
            show_default=f"{FOLDER}/ and the script's name",
            help="Folder of records, tables, figures and report; the same command resumes.",
        ),
    ] = None
    axes: Annotated[Mapping[str, str], TUNE_AXES]

    def script(self) -> UsersScript:
        """Return the script that is to be run."""
        from kbatch.standin.users_script import UsersScript

        words = list(self.words or ())
        if self.module is not None:
            return UsersScript(self.module, is_module=True, arguments=tuple(words))
        if not words:
            raise SearchError(
                "A script must be named", "none", "Pass kbatch tune train.py, or --module"
            )
        return UsersScript(words[0], arguments=tuple(words[1:]))

    @property
    def folder(self) -> Path:
        """Path of the results."""
        if self.out is not None:
            return Path(self.out)
        name = self.module or Path((self.words or ["script"])[0]).stem
        return Path(FOLDER) / name

    def check_values(self) -> None:
        """Refuse options that make no sense."""
        if self.train and self.check:
            raise SearchError(
                "One of --train and --check must be given", "both", "Leave one of them out"
            )
        if self.fit is not None and self.fit < 1:
            raise SearchError("--fit must be at least 1", self.fit, "Pass 2, say")
        if self.validation_split is not None and not 0 < self.validation_split < 1:
            raise SearchError(
                "--validation-split must be a share between 0 and 1",
                self.validation_split,
                "Pass 0.2, say",
            )


@with_options(TuneOptions)
def tune(options: TuneOptions) -> None:
    """Search how to train your script as it is, and say what to change in its own lines.

    What its model.fit does is the baseline. With --train it takes the place of `python train.py`:
    the winner trains, and the rest of the script runs. Options of kbatch come before the script.
    """
    with told_plainly(str(options.folder)):
        options.check_values()
        script = options.script()
        file = script.file.resolve()  # refuses what is no script before TensorFlow is imported
        folder = options.folder.resolve()  # a script may go to another folder
        from kbatch.cli.search_run import import_tensorflow, ready, start_tensorflow

        if not options.check:
            ready(str(options.folder))
        import_tensorflow()
        start_tensorflow()
        from kbatch.standin.fit_taker import Ended, FitTaker

        try:
            taker = _Taker(options, folder)
            tuners = taker.tuners() if options.fit is None else None
            FitTaker(script, options.fit, taker.take, tuners).run()
        except Ended:
            return
        except SystemExit as end:
            raise typer.Exit(_code(end)) from end
        except Exception as error:
            if isinstance(error, KbatchError) or files.disk_trouble(error) is not None:
                raise
            _show_error(error, file)
            raise typer.Exit(1) from error


def _show_error(error: Exception, file: Path) -> None:
    """Print an error of the script as Python would, from its own first line on."""
    trace = error.__traceback__
    frames = list(traceback.walk_tb(trace))
    own = [
        place for place, (frame, _) in enumerate(frames) if frame.f_code.co_filename == str(file)
    ]
    for _ in range(own[0] if own else 0):
        trace = trace.tb_next if trace is not None else None
    traceback.print_exception(type(error), error, trace)


def _code(end: SystemExit) -> int:
    """The exit code of a script that ends itself."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    typer.echo(end.code, err=True)
    return 1


class _Taker:
    """What is done with the call of `fit` that is taken."""

    def __init__(self, options: TuneOptions, folder: Path) -> None:
        self._options, self._folder = options, folder

    def take(self, call: FitCall) -> Any:
        from kbatch.standin.fit_taker import Ended
        from kbatch.standin.taken import Taken
        from kbatch.standin.tuned import searched

        options = self._options
        taken = Taken.of(call, options.metric, options.validation_split)
        print(taken.told, flush=True)
        if options.check:
            raise Ended
        found = searched(taken, self._wishes(), self._folder)
        self._tell(found.report, found.sentence, self._folder)
        if options.train:
            print(f"Trained by: {found.recipe}", flush=True)
            return found.trained()
        _print_changes(call, found)
        raise Ended

    def tuners(self) -> TunerTaker:
        """Return what takes the search of a tuner of the script's."""
        from kbatch.standin.search_call import TunerTaker

        return TunerTaker(self._wishes(), self._folder, self._told, self._searched)

    def _told(self, sentence: str) -> None:
        from kbatch.standin.fit_taker import Ended

        print(sentence, flush=True)
        if self._options.check:
            raise Ended

    def _searched(self, tuner: Any, folder: Path) -> None:
        from kbatch.results.report import report
        from kbatch.standin.changes import changes_of_tuner
        from kbatch.standin.fit_taker import Ended

        if self._options.train:
            self._tell(report(tuner), "The script goes on with its tuner's trials.", folder)
            return
        words = "With these changes the script searches so by itself, in its own folder:"
        self._tell(report(tuner), words, folder)
        file, line = tuner.hypermodel.place
        print(changes_of_tuner(_source(file), Path(file).name, line, tuner.hypermodel.arguments))
        raise Ended

    def _tell(self, report: Any, sentence: str, folder: Path) -> None:
        print(report, flush=True)
        print(f"Page: {folder / 'report.html'}", flush=True)
        print(sentence, flush=True)

    def _wishes(self) -> Any:
        from kbatch.standin.tuned import Wishes

        options = self._options
        return Wishes(
            budget=options.budget,
            seconds_per_trial=options.seconds_per_trial,
            max_trials=options.trials,
            axes=axis_arguments(options.axes),
            metric=options.metric,
            direction=options.direction,
            chance=options.chance,
            confirm_seeds=options.confirm,
            seed=options.seed,
            isolated=options.isolated,
            validation_split=options.validation_split,
        )


def _print_changes(call: FitCall, found: Found) -> None:
    from kbatch.standin.changes import changes_of

    if call.place is None:
        return
    file, line = call.place
    source, name = _source(file), Path(file).name
    print(changes_of(source, name, line, found.baseline, found.recipe, found.taken.gets_batches))


def _source(file: str) -> str:
    """The text of a file of the user's; empty for a cell, and for code that was made."""
    try:
        return Path(file).read_text()
    except OSError:
        return ""
