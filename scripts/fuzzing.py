"""Calls of the command line in this process, with a time limit, for the two fuzzing scripts."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from kbatch.cli.app import app
from kbatch.plain_text import CONTROLS

GOOD = ("done", "refused", "usage")


class Hang(BaseException):
    """Raised in a call that takes too long."""


class Begun(BaseException):
    """Raised where a command line is accepted and its slow part would begin."""


@dataclass(frozen=True)
class Ended:
    """How a call ended.

    Attributes:
        how: `"done"`, `"refused"` (one sentence, exit code 2) or `"usage"` (no such command line).
            The wrong ends are `"traceback"`, `"hang"`, `"exit code"`, `"raw text"`
            and `"several lines"`.
        said: Standard error, or the traceback.
    """

    how: str
    said: str


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `Hang` inside the `with` after so many seconds."""

    def ring(number: int, frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def called(function: Callable[[], object], seconds: float) -> Ended:
    """Call a function that prints and may end the process, and return how it ended.

    Args:
        function: The function.
        seconds: Float, after which it hangs.
    """
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    path = list(sys.path)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            at_most(seconds),
        ):
            function()
    except SystemExit as error:
        code = error.code or 0
    except Begun:
        pass
    except Hang:
        return Ended("hang", err.getvalue())
    except BaseException:  # any other error is a finding
        return Ended("traceback", traceback.format_exc())
    finally:
        sys.path[:] = path
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
            signal.signal(number, handler)
    return Ended(_how(code, err.getvalue()), err.getvalue())


def _how(code: object, said: str) -> str:
    refusals = [line for line in said.splitlines() if not line.startswith("warning: ")]
    if "Traceback" in said:
        return "traceback"
    if code == 2 and not said.startswith("Usage:") and not _is_plain(said):
        return "raw text"
    if code == 0:
        return "done"
    if code != 2:
        return "exit code"
    if said.startswith("Usage:"):
        return "usage"
    return (
        "refused" if len(refusals) == 1 and refusals[0].startswith("error: ") else "several lines"
    )


def _is_plain(said: str) -> bool:
    """Whether no line commands the terminal or is endless."""
    return not CONTROLS.search(said) and all(len(line) < 4_000 for line in said.splitlines())


def command(arguments: list[str], seconds: float) -> Ended:
    """Call a command line, and return how it ended.

    Args:
        arguments: The arguments after `kbatch`.
        seconds: Float, after which it hangs.
    """
    return called(lambda: app(arguments, prog_name="kbatch"), seconds)


def begin(*arguments: object, **named: object) -> None:
    """Stands for a slow function: ends the call."""
    raise Begun


@contextlib.contextmanager
def replaced(**functions: Callable[..., Any]) -> Iterator[None]:
    """Replace functions of kbatch, each named by its module with two underscores for a dot."""
    with contextlib.ExitStack() as stack:
        for name, function in functions.items():
            stack.enter_context(mock.patch("kbatch." + name.replace("__", "."), function))
        yield


def odd_files(folder: Path) -> dict[str, Callable[[Path], object]]:
    """Return things that may be where a file is expected, each with a function that puts it there.

    Args:
        folder: An empty folder for the targets of links.
    """
    return {
        "a folder": lambda path: path.mkdir(),
        "a pipe": lambda path: os.mkfifo(path),
        "an endless device": lambda path: path.symlink_to("/dev/zero"),
        "an empty device": lambda path: path.symlink_to("/dev/null"),
        "a loop of links": lambda path: path.symlink_to(path.name),
        "a link to nowhere": lambda path: path.symlink_to(folder / "nowhere"),
        "nothing": lambda path: None,
        "an empty file": lambda path: path.write_bytes(b""),
    }


def told(counted: collections.Counter[str], what: str, seconds: float) -> str:
    """Return the result as a sentence."""
    ends = ", ".join(f"{count} {how}" for how, count in counted.most_common())
    bad = sum(count for how, count in counted.items() if how not in GOOD)
    calls = f"{sum(counted.values())} {what} in {seconds:.0f} s"
    return f"{calls}: {ends}; {bad} of them as they must not end"
