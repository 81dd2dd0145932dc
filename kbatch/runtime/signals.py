"""Signals: Ctrl-C and its kin end a search and lose nothing; standard streams, quiet and open."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Delay of a signal that Python lost in a `__del__`: by then the object is gone. If not, the signal
# is lost and raised again once more. Chosen by hand, not tuned.
AGAIN_SECONDS = 0.05
# Signals that follow so closely count as one, so that cleaning up is not interrupted. Chosen by
# hand, not tuned.
ONE_SECONDS = 1.0
NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP


class Stopped(KeyboardInterrupt):
    """A signal that asks this process to end.

    Attributes:
        signal_number: Integer, number of the signal.
    """

    def __init__(self, signal_number: int = signal.SIGINT) -> None:
        super().__init__()
        self.signal_number = int(signal_number)

    @property
    def exit_code(self) -> int:
        """Integer, exit code as in a shell: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signal_number


@contextmanager
def stopping(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into a `KeyboardInterrupt` inside the `with` block, as Ctrl-C is.

    No signal is lost. During a step TensorFlow holds the main thread in C++, and a signal waits for
    the next line of Python. That line may be in a `__del__` or a callback, where Python prints an
    exception and drops it; such a signal is raised again. A second signal within a second is
    dropped. Signals that were ignored before, as SIGHUP is under `nohup`, stay ignored. Outside the
    main thread nothing changes.
    """
    last: list[float] = []

    def handler(number: int, frame: Any) -> None:
        now = clock()
        if not last or now - last[0] > ONE_SECONDS:
            last[:] = [now]
            raise Stopped(number)

    before = sys.unraisablehook

    def hook(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            return before(lost)
        last.clear()
        number = getattr(lost.exc_value, "signal_number", signal.SIGINT)
        # raised in this hook, it would be lost as well
        threading.Timer(AGAIN_SECONDS, _thread.interrupt_main, (number,)).start()

    sys.unraisablehook = hook
    try:
        with _handled(handler):
            yield
    finally:
        sys.unraisablehook = before


@contextmanager
def at_once() -> Iterator[None]:
    """Let a signal end the process on the spot inside the `with` block.

    For imports, during which nothing can be lost. A library that is interrupted during its import
    prints tracebacks of its own, or ignores the signal.
    """
    own = os.dup(2)  # standard error may be redirected inside the block

    def handler(number: int, frame: Any) -> None:
        os.write(own, b"\nStopped.\n")
        os._exit(128 + number)

    try:
        with _handled(handler):
            yield
    finally:
        os.close(own)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay signals inside the `with` block, in which the stop of a training is written."""
    came: list[int] = []
    with _handled(lambda number, frame: came.append(number)):
        yield
    for number in came[:1]:
        signal.raise_signal(number)


@contextmanager
def terminable() -> Iterator[None]:
    """Turn a SIGTERM or SIGHUP without a handler into a `KeyboardInterrupt` inside the block.

    So a training that is ended by it is recorded as stopped, not as crashed.
    """

    def handler(number: int, frame: Any) -> None:
        raise Stopped(number)

    main = threading.current_thread() is threading.main_thread()
    numbers = [
        number for number in _numbers() if main and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in numbers:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def ignore() -> None:
    """Ignore all further signals, since the process is about to end."""
    with contextlib.suppress(ValueError):
        for number in _numbers():
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def _handled(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Let a function handle the signals that are neither ignored nor handled by C code."""
    main = threading.current_thread() is threading.main_thread()  # others may not set handlers
    before = {number: signal.getsignal(number) for number in _numbers()} if main else {}
    ours = {number: kept for number, kept in before.items() if kept not in (signal.SIG_IGN, None)}
    for number in ours:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, kept in ours.items():
            signal.signal(number, kept)


def _numbers() -> list[int]:
    return [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


class Ended(KeyboardInterrupt):
    """Another thread has ended the search, by an error or by Ctrl-C."""


class Turns:
    """The turn that the threads of a search hand to each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own = threading.local()
        self._over = threading.Event()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn, and keep it inside the `with` block."""
        try:
            self._take()
            yield
        finally:
            self._give()

    @contextmanager
    def given(self) -> Iterator[None]:
        """Hand the turn over inside the `with` block; a thread without it does nothing."""
        if not getattr(self._own, "has", False):
            yield
            return
        self._give()
        try:
            yield
        finally:
            self._take()
        self.check()

    def begin(self) -> None:
        """Forget that an earlier search was ended."""
        self._over.clear()

    def end(self) -> None:
        """Let `check` end all other threads."""
        self._over.set()

    def check(self) -> None:
        """End this thread if another one has ended the search."""
        if self._over.is_set():
            raise Ended

    def _take(self) -> None:
        # Ctrl-C waits, so that nobody goes on without the turn
        with undisturbed():
            self._lock.acquire()
            self._own.has = True

    def _give(self) -> None:
        if getattr(self._own, "has", False):
            self._own.has = False
            self._lock.release()


def open_missing() -> None:
    """Put the null device where a standard stream is closed.

    The next file would take its number, and what a library prints would be written into that file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest number that is free is the stream's own.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


@contextmanager
def turned_away() -> Iterator[None]:
    """Hold back the standard error of this process inside the `with` block.

    If the block raises an exception, the lines are printed after all.

    Example:
    ```python
    with signals.turned_away():
        import tensorflow as tf
    ```
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    own = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(own, held.read())
            raise
        finally:
            os.dup2(own, 2)
            os.close(own)
