"""Ctrl-C: with SIGTERM and a hang-up, ends a command once and cleanly, also where Python would lose it."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AGAIN_SECONDS = 0.05  # by then the object is gone; if not, the next one is taken up in the same way
# signals that follow one another so closely are one wish: cleaning up is not interrupted again
ONE_SECONDS = 1.0
NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no hang-up


class Stopped(KeyboardInterrupt):
    """A signal that asks this process to end.

    Attributes:
        signal_number: Integer, which one.
    """

    def __init__(self, signal_number: int = signal.SIGINT) -> None:
        super().__init__()
        self.signal_number = int(signal_number)

    @property
    def exit_code(self) -> int:
        """128 and the signal's number, as shells have it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signal_number


@contextmanager
def stopping(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Inside, SIGTERM and a hang-up are a `KeyboardInterrupt` as Ctrl-C is, and none is lost; one that follows within a second is no second one.

    TensorFlow holds the main thread in C++ during a step, and a signal waits there for the next
    line of Python, which may be a `__del__` or a callback, where Python only prints what is raised:
    it is raised again. What was ignored before, as hang-ups are under `nohup`, stays ignored.
    Outside of the main thread no signal is handled.

    Args:
        clock: Function that gives the time in seconds. Defaults to `time.monotonic`.
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
        # raised in here it would be lost as well
        threading.Timer(AGAIN_SECONDS, _thread.interrupt_main, (number,)).start()

    sys.unraisablehook = hook
    try:
        with _handled(handler):
            yield
    finally:
        sys.unraisablehook = before


@contextmanager
def at_once() -> Iterator[None]:
    """Inside, such a signal ends the process on the spot; for imports, during which there is nothing to lose and much to break.

    A library that is interrupted while it is imported says so in tracebacks of its own, or not at
    all.
    """
    own = os.dup(2)  # which may be turned away meanwhile

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
    """Inside, such a signal waits; for the line that says a training was stopped."""
    came: list[int] = []
    with _handled(lambda number, frame: came.append(number)):
        yield
    for number in came[:1]:
        signal.raise_signal(number)


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, a SIGTERM or a hang-up that nobody handles is a `KeyboardInterrupt`, so that what was begun is noted as stopped and not as a crash."""

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
    """From now on nothing of the kind is listened to: the process is about to end."""
    with contextlib.suppress(ValueError):
        for number in _numbers():
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def _handled(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Let a function handle the signals, those that are ignored or that C code handles excepted."""
    main = threading.current_thread() is threading.main_thread()  # the only one that may
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
