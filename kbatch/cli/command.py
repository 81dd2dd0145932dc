"""Command: what all commands share: options, the console, and errors told in a sentence."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from kbatch import plain_text
from kbatch.axis import Option
from kbatch.errors import KbatchError, ModelError, SearchError
from kbatch.records import files
from kbatch.runtime import signals

if TYPE_CHECKING:
    from rich.console import Console


AXES_PANEL = "Axes of the recipes"  # of --help


@dataclass(frozen=True)
class AxisOptions:
    """The annotation of a field that holds the texts of the axes' options."""

    by_axis: Mapping[str, Option]


def _whole_number(text: object) -> int:
    number = plain_text.whole(str(text))
    if number is None:
        raise typer.BadParameter(f"{text!r} must be a whole number, in plain digits.")
    return number


def _number(text: object) -> float:
    number = plain_text.number(str(text))
    if number is None:
        raise typer.BadParameter(f"{text!r} must be a finite number, such as 0.5.")
    return number


# Arguments of `typer.Option`. Its own types read numbers as Python does: `1_0`, `٣` and `nan` too.
WHOLE: dict[str, Any] = {"parser": _whole_number, "metavar": "<int>"}
NUMBER: dict[str, Any] = {"parser": _number, "metavar": "<float>"}


def with_options(kind: type) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Give a command that takes one dataclass an option for each field of it.

    Typer reads a field as it reads a function's argument: `Annotated[type, typer.Option(…)]`. A
    field annotated with `AxisOptions` stands for an option of each axis, and holds the texts of
    those that were given, by the name of the axis.
    """

    def decorate(command: Callable[[Any], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(kind(**_fields(kind, given)))

        parameters = list(_parameters(kind))
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return decorate


def _axis_options(hint: Any) -> Mapping[str, Option] | None:
    """The options by axis of a field that stands for axes; `None` for any other field."""
    for note in get_args(hint)[1:]:
        if isinstance(note, AxisOptions):
            return note.by_axis
    return None


def _parameters(kind: type) -> Iterator[inspect.Parameter]:
    """The arguments of the function that typer reads."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        options = _axis_options(hints[field.name])
        if options is None:
            missing = field.default is dataclasses.MISSING
            default = inspect.Parameter.empty if missing else field.default
            yield _parameter(field.name, default, hints[field.name])
            continue
        for option in options.values():
            declared = typer.Option(
                f"--{option.name}",
                help=option.help,
                show_default=option.default_words or True,
                rich_help_panel=AXES_PANEL,
            )
            yield _parameter(option.parameter, option.default, Annotated[str | None, declared])


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _fields(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """The fields of the dataclass, from the arguments that typer gives."""
    hints = get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        options = _axis_options(hints[field.name])
        if options is None:
            fields[field.name] = given[field.name]
            continue
        texts = {axis: given[option.parameter] for axis, option in options.items()}
        fields[field.name] = {axis: text for axis, text in texts.items() if text is not None}
    return fields


WIDTH = 150  # columns where there is no terminal


def new_console() -> Console:
    """Return a console that prints names as they are, also those that look like rich's markup."""
    from kbatch.text_table import PlainConsole

    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(width=WIDTH)


def print_text(text: str) -> None:
    """Print a text as it is."""
    print(text, end="", flush=True)


CLOSED_PIPE = 141  # as a shell says it of a program that SIGPIPE ended


class PlainGroup(TyperGroup):
    """Commands whose options are refused in one sentence, without a frame and the usage."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, whose options are read here."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            # Typer 0.29 reads values by pydantic, whose words these are.
            raise refused(error.format_message().replace("Value error, ", "")) from error


@contextmanager
def told_plainly(out: str = "", stopped: str = "") -> Iterator[None]:
    """Turn bad input, a full disk and Ctrl-C into one sentence and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names of files may be in no encoding at all.
            stream.reconfigure(errors="backslashreplace")
    _silence_disk_errors()
    try:
        with signals.stopping(), warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            yield
    except KeyboardInterrupt as error:
        signals.ignore()
        if out and Path(out).exists():
            stopped = (
                f" Trials that had finished are kept: `kbatch report {out}` shows them, "
                "and the same command goes on."
            )
        print(f"\nStopped.{stopped}", file=sys.stderr)
        raise typer.Exit(getattr(error, "exit_code", 130)) from error
    except BrokenPipeError as error:  # of `kbatch … | head`, which has read enough
        if not _has_left():
            raise  # of a worker, say
        # Python would complain when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(CLOSED_PIPE) from error
    except SystemExit as error:  # raised by a module of the user's: kbatch raises none
        raise refused(
            "A module that is imported must not end the command. "
            f"Received: sys.exit({error.code!r}). Take that line out."
        ) from error
    except Exception as error:
        refusal = _refusal(error)
        if refusal is None:
            raise
        raise refused(str(refusal)) from error


@contextmanager
def errors_of_users_code(
    must: str, do: str, kind: type[KbatchError] = ModelError
) -> Iterator[None]:
    """Turn any error of the user's own code into one sentence."""
    try:
        yield
    except KbatchError:
        raise
    except (Exception, SystemExit) as error:
        raise kind(must, " ".join(f"{type(error).__name__}: {error}".split()), do) from error


def _has_left() -> bool:
    """Whether the reader of standard output has left."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False


def refused(sentence: str) -> typer.Exit:
    """Print a refusal as one line, and return the exit with code 2."""
    print(f"error: {plain_text.sentence(sentence)}", file=sys.stderr)
    return typer.Exit(2)


def _refusal(error: Exception) -> KbatchError | None:
    """The refusal that an error stands for; `None` for a bug, which keeps its traceback."""
    full = files.disk_trouble(error)
    if full is not None and ".h5" in str(full):
        _end_at_once(str(full))
    if isinstance(error, KbatchError):
        return error
    if isinstance(error, ImportError) and _arose_in(error, "tensorflow"):
        return SearchError(
            "TensorFlow must be importable", str(error), "See `kbatch doctor` for what is wrong"
        )
    if full is None and isinstance(error, OSError) and error.filename is not None:
        return files.refusal(error)
    return full


def _arose_in(error: Exception, package: str) -> bool:
    """Whether an error was raised by a package."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).partition(".")[0] == package


def _show_warning(message: Warning | str, *rest: Any) -> None:
    typer.secho(f"warning: {plain_text.sentence(str(message))}", fg="yellow", err=True)


def _silence_disk_errors() -> None:
    """Leave out disk errors that objects repeat while they are cleared away.

    A file that could not be written says so again when it is closed. The command's own sentence has
    said it.
    """
    if sys.unraisablehook is not sys.__unraisablehook__:
        return
    # Cython calls typer's excepthook for errors that are raised where nothing can catch them.
    excepthook = sys.excepthook

    def silent(lost: Any) -> None:
        if lost.exc_value is None or files.disk_trouble(lost.exc_value) is None:
            sys.__unraisablehook__(lost)

    def unsaid(kind: type[BaseException], value: BaseException, trace: Any) -> None:
        if files.disk_trouble(value) is None:
            excepthook(kind, value, trace)

    sys.unraisablehook, sys.excepthook = silent, unsaid


def _end_at_once(sentence: str) -> None:
    """End the process before HDF5 closes the file that found no room.

    HDF5 would try to write it once more, and the process would die of that.
    """
    exit_code = refused(sentence).exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
