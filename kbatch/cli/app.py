"""The command line: `kbatch cats-vs-dogs`, `max-batch`, `recompute`, `report` and `doctor`. Imports TensorFlow only when a search begins."""

from __future__ import annotations

import functools
import inspect
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

import kbatch
from kbatch import number_text
from kbatch.errors import KbatchError
from kbatch.option import Option
from kbatch.records import disk
from kbatch.runtime import ctrl_c
from kbatch.space import AXES

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Which way of training this model on this device buys the most validation accuracy per second?",
)

PANEL = "Axes of the search"


def _whole_number(text: object) -> int:
    number = number_text.whole(str(text))
    if number is None:
        raise typer.BadParameter(f"{text!r} must be a whole number, in plain digits.")
    return number


def _number(text: object) -> float:
    number = number_text.number(str(text))
    if number is None:
        raise typer.BadParameter(f"{text!r} must be a finite number, such as 0.5.")
    return number


WHOLE = {"parser": _whole_number, "metavar": "<int>"}
NUMBER = {"parser": _number, "metavar": "<float>"}


def _version(wanted: bool) -> None:
    if wanted:
        print(f"kbatch {kbatch.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and leave."
        ),
    ] = False,
) -> None:
    """Which way of training this model on this device buys the most validation accuracy per second?"""


def _asks_for_axes(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every axis of the table, instead of its argument `axes`, which gets what was said."""
    options = {axis.option.parameter: axis for axis in AXES if axis.option is not None}
    own = [
        parameter
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if name != "axes"
    ]
    last = own.index(next(parameter for parameter in own if parameter.name == "micro_batch_size"))

    @functools.wraps(command)
    def told(**said: Any) -> None:
        texts = {axis.name: said.pop(name) for name, axis in options.items()}
        command(**said, axes={name: text for name, text in texts.items() if text is not None})

    asked = [_parameter(axis.option) for axis in options.values() if axis.option is not None]
    told.__signature__ = inspect.Signature([*own[:last], *asked, *own[last:]])  # type: ignore[attr-defined]
    return told


def _parameter(option: Option) -> inspect.Parameter:
    """An option as typer reads it from a function's signature."""
    asked = typer.Option(
        help=option.help, show_default=option.default_words or True, rich_help_panel=PANEL
    )
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(
        option.parameter, kind, default=option.default, annotation=Annotated[str | None, asked]
    )


@app.command("cats-vs-dogs")
@_asks_for_axes
def cats_vs_dogs(
    data: Annotated[
        str,
        typer.Option(
            help="'drawn' (by code, no download), 'tfds', or a folder or zip with two folders of photographs, 100 of each class at least."
        ),
    ] = "drawn",
    image_size: Annotated[int, typer.Option(**WHOLE, help="Height and width in pixels.")] = 64,
    trials: Annotated[int, typer.Option(**WHOLE, help="Recipes to try.")] = 6,
    seconds_per_trial: Annotated[
        float | None,
        typer.Option(
            **NUMBER, show_default="8, unless --epochs", help="Training seconds of every trial."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            **WHOLE, help="Instead of seconds: as long as the baseline takes for so many epochs."
        ),
    ] = None,
    tuner: Annotated[
        str, typer.Option(help="random, bayesian or grid (three rates an optimizer).")
    ] = "random",
    model: Annotated[str, typer.Option(help="cnn (the case study's) or small-resnet.")] = "cnn",
    target: Annotated[
        float | None,
        typer.Option(**NUMBER, help="Accuracy that is good enough: a trial ends once it is held."),
    ] = None,
    confirm: Annotated[
        int,
        typer.Option(
            **WHOLE,
            help="Fresh seeds per recipe for the confirmation; a claim takes 3, and 0 leaves it out.",
        ),
    ] = 3,
    confirm_top: Annotated[
        int, typer.Option(**WHOLE, help="Leading recipes to confirm, besides the baseline.")
    ] = 2,
    seed: Annotated[
        int, typer.Option(**WHOLE, help="Seed of drawn data, tuner, weights and data order.")
    ] = 0,
    out: Annotated[
        str,
        typer.Option(
            help="Folder of records, tables, figures and report; the same command resumes."
        ),
    ] = "kbatch-cats-vs-dogs",
    micro_batch_size: Annotated[
        int | None,
        typer.Option(
            **WHOLE,
            help="Most examples per pass; larger batches accumulate gradients.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    max_batch: Annotated[
        str,
        typer.Option(
            help="Largest micro-batch: auto (found first, where the device has a memory limit), off or a number.",
            rich_help_panel=PANEL,
        ),
    ] = "auto",
    *,
    axes: dict[str, str],
) -> None:
    """Search how to train the cats-vs-dogs model, confirm what leads with fresh seeds, and say what it buys.

    Every trial trains for the same seconds and is scored by the validation accuracy it holds above
    chance, per second. Stop it with Ctrl-C whenever you like: the same command goes on where it
    was.
    """
    if seconds_per_trial is None and epochs is None:
        seconds_per_trial = 8.0
    with _told_plainly(out):
        from kbatch.case_study import driver
        from kbatch.case_study.options import Options

        options = Options(
            data=data,
            image_size=image_size,
            trials=trials,
            seconds_per_trial=seconds_per_trial,
            epochs=epochs,
            tuner=tuner,
            model=model,
            axes=axes,
            micro_batch_size=micro_batch_size,
            max_batch=max_batch,
            target=target,
            confirm=confirm,
            confirm_top=confirm_top,
            seed=seed,
            out=out,
        )
        driver.run(options, _console())


@app.command("max-batch")
def largest_batch(
    build: Annotated[
        str,
        typer.Argument(
            help="module:function of the function that returns the model, importable from here."
        ),
    ],
    shape: Annotated[
        str | None,
        typer.Option(
            show_default="the model's keras.Input", help="Shape of one example, such as 224,224,3."
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(show_default="float32", help="Type of the examples, with --shape.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="float32, mixed_float16, mixed_bfloat16; several make a table.")
    ] = "float32",
    optimizer: Annotated[
        str, typer.Option(help="sgd, adam, compiled; several make a table.")
    ] = "adam",
    jit: Annotated[str, typer.Option(help="XLA: off, on or both.")] = "off",
    recompute: Annotated[
        str, typer.Option(help="none, minimal, sqrt, stages, budget:0.5; several make a table.")
    ] = "none",
    memory_limit: Annotated[
        str | None,
        typer.Option(show_default="what the GPU has, or a CPU's set limit", help="Such as 8GB."),
    ] = None,
    ceiling: Annotated[int | None, typer.Option(**WHOLE, help="Largest batch size to try.")] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="Loss by Keras' name, if the function does not compile the model."),
    ] = None,
    accumulation: Annotated[
        int,
        typer.Option(
            **WHOLE, help="Passes per weight update; the answer is the largest micro-batch."
        ),
    ] = 1,
    taken: Annotated[
        str, typer.Option("--sizes", help="any, powers_of_two or multiples_of_8.")
    ] = "any",
    table: Annotated[
        bool,
        typer.Option(
            "--table",
            help="One row per policy, optimizer, jit and recompute, also if there is only one.",
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what was measured before.")
    ] = False,
) -> None:
    """Find the largest batch that safely trains, from a handful of probes in a process that may die.

    Answers are kept in ~/.cache/kbatch (or $KBATCH_CACHE) under the traced model, and given again
    without a probe; --fresh measures again.
    """
    with _told_plainly(
        stopped=" Sizes that were tried are not kept: the same command tries them again."
    ):
        with ctrl_c.at_once():
            from kbatch.cli.max_batch import Asked, answer

        answer(
            Asked(
                build,
                shape,
                dtype,
                policy,
                optimizer,
                jit,
                recompute,
                memory_limit,
                ceiling,
                loss,
                accumulation,
                taken,
                table,
                fresh,
            ),
            _console(),
        )


@app.command("recompute")
def plans_of(
    build: Annotated[
        str,
        typer.Argument(
            help="module:function of the function that returns the model, importable from here."
        ),
    ],
    shape: Annotated[
        str | None,
        typer.Option(
            help="Shape of one example, such as 224,224,3, if the model has no keras.Input."
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="float32, mixed_float16, mixed_bfloat16.")
    ] = "float32",
    optimizer: Annotated[
        str, typer.Option(help="sgd or adam, whose slots take room beside the weights.")
    ] = "adam",
    batch_size: Annotated[
        int, typer.Option(**WHOLE, help="Examples per step, for which bytes are given.")
    ] = 32,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Such as 8GB: the fastest plan that fits is shown, and the largest batch of each."
        ),
    ] = None,
    figure: Annotated[str, typer.Option(help="PNG file for peak against time.")] = "recompute.png",
    plan: Annotated[str | None, typer.Option(help="JSON file for the plan that is shown.")] = None,
) -> None:
    """Show how much memory gradient checkpointing saves in a model, for how much more time, and where to cut it.

    Each operation is traced forward and backward once; nothing is trained. Without a limit the plan
    of the lowest peak is shown in words.
    """
    with _told_plainly():
        from kbatch.runtime import quiet_import

        with ctrl_c.at_once(), quiet_import.turned_away():
            from kbatch.cli.recompute import Asked, answer
        answer(
            Asked(build, shape, policy, optimizer, batch_size, memory_limit, figure, plan),
            _console(),
        )


@app.command()
def report(
    directory: Annotated[str, typer.Argument(help="Folder of a search, or what --out was.")],
) -> None:
    """Write trials.csv, report.md and the figures of a search again. Needs no TensorFlow."""
    with _told_plainly():
        with ctrl_c.at_once():
            from kbatch.case_study import driver
            from kbatch.results import report as writing

        files = writing.write(directory)
        driver.show(directory, _console())
        print("Written: " + ", ".join(str(file) for file in files))


@app.command("doctor")
def examine() -> None:
    """Say what a bug report needs to know of this machine, and what stands in a search's way on it. Exit code 1 if anything does."""
    with _told_plainly():
        from kbatch.cli import doctor

        found = doctor.findings()
        print("\n".join(doctor.lines(found)))
    if any(finding.problem for finding in found):
        raise typer.Exit(1)


@contextmanager
def _told_plainly(out: str = "", stopped: str = "") -> Iterator[None]:
    """Bad input, and a disk that is full, are one sentence and exit code 2; Ctrl-C and its like say what was kept.

    Args:
        out: Folder of the search, if there is one to go on with.
        stopped: What to say of a command that was stopped and has no such folder.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # names of files may be in no encoding at all
            stream.reconfigure(errors="backslashreplace")
    _be_silent_of_disks()
    warnings.showwarning = lambda message, *rest: print(f"warning: {message}", file=sys.stderr)
    try:
        with ctrl_c.stopping():
            yield
    except KeyboardInterrupt as error:
        ctrl_c.ignore()
        kept = (
            f" Trials that had finished are kept: `kbatch report {out}` shows them, and the same command goes on."
            if out
            else stopped
        )
        print(f"\nStopped.{kept}", file=sys.stderr)
        raise typer.Exit(getattr(error, "exit_code", 130)) from error
    except SystemExit as error:  # which of our own parts none raises
        raise _refused(
            f"A module that is imported must not end the command. Received: sys.exit({error.code!r}). Take that line out."
        ) from error
    except Exception as error:
        full = disk.trouble(error)
        if full is not None and ".h5" in str(full):
            _end_at_once(str(full))
        if isinstance(error, KbatchError):
            raise _refused(str(error)) from error
        if full is None and isinstance(error, OSError) and error.filename is not None:
            full = disk.refusal(error)
        if full is None:
            raise
        raise _refused(str(full)) from error


def _be_silent_of_disks() -> None:
    """Leave out what a file that could not be written says again when it is cleared away: the sentence has said it."""
    if sys.unraisablehook is sys.__unraisablehook__:
        excepthook = (
            sys.excepthook
        )  # typer's; Cython calls it for what is raised where nothing can catch it

        def silent(lost: Any) -> None:
            if lost.exc_value is None or disk.trouble(lost.exc_value) is None:
                sys.__unraisablehook__(lost)

        def unsaid(kind: type[BaseException], value: BaseException, trace: Any) -> None:
            if disk.trouble(value) is None:
                excepthook(kind, value, trace)

        sys.unraisablehook, sys.excepthook = silent, unsaid


def _end_at_once(sentence: str) -> None:
    """End before HDF5 tries once more to close the file that found no room, of which the process would die."""
    refused = _refused(sentence)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(refused.exit_code)


def _refused(sentence: str) -> typer.Exit:
    print("error: " + " ".join(sentence.split()), file=sys.stderr)
    return typer.Exit(2)


def _console():  # type: ignore[no-untyped-def]
    """A console for words that are not all ours: what looks like rich's markup in a name is printed as it is."""
    from rich.console import Console

    console = Console(markup=False, emoji=False)
    return console if console.is_terminal else Console(width=150, markup=False, emoji=False)
