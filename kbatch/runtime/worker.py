"""Worker: a disposable process that calls functions, and may die without harm."""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import resource
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import cloudpickle
from loky import ProcessPoolExecutor
from loky.process_executor import BrokenProcessPool

from kbatch.runtime import loky_private, users_code

ORPHAN_CHECK_SECONDS = 0.5  # chosen by hand, not tuned
LOOK_SECONDS = 0.1  # from one look after a call to the next; chosen by hand
SAID_CHARACTERS = 2000  # kept of a dead worker's output; chosen by hand, not tuned
LOST = "its machine was lost"
INTERRUPTED = 130  # exit code in a shell of a program that Ctrl-C ended


@dataclass(frozen=True)
class Death:
    """The end of a worker in the middle of a call.

    Attributes:
        exit_code: Integer, exit code of the process as `subprocess` gives it: the negative number
            of the signal that killed it. `None` if the watchdog ended it. If the function raised
            `SystemExit` or `KeyboardInterrupt`, the exit code that a program would have.
        said: String, the last output of the process, or the name of that exception.
        is_of_machine: Boolean, whether the machine of the process was lost.
    """

    exit_code: int | None
    said: str
    is_of_machine: bool = False

    def __str__(self) -> str:
        if self.is_of_machine:
            return LOST
        return (
            "it hung"
            if self.exit_code is None
            else f"its process died with exit code {self.exit_code}"
        )


class Worker:
    """A process that starts when it is first needed, and again after it died.

    Functions and arguments travel by cloudpickle, so functions defined in a notebook work too.
    Their output goes to a file of the worker. The process ends with `close`, and by itself when its
    parent is gone.

    Args:
        environment: Mapping, environment variables in addition to the parent's. Defaults to none.

    Example:
    >>> with Worker() as worker:
    ...     worker.call(pow, 2, 10, timeout_seconds=60)
    1024
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.environment = dict(environment or {})
        self.starts = 0
        self._executor: ProcessPoolExecutor | None = None
        self._said: Any = None

    def call(self, function: Callable[..., Any] | str, *args: Any, timeout_seconds: float) -> Any:
        """Call a function in the worker.

        Global variables that the function sets are there in the next call, while the process lives.

        Args:
            function: The function; or its name, such as `"package.module:function"`, if its module
                must not be imported in this process.
            *args: Arguments of the function.
            timeout_seconds: Float, seconds after which the watchdog ends the process.

        Returns:
            The result of the function, or the `Death` of the process. After a death the next call
            starts a new process.

        Raises:
            Exception: The exception that the function raised.
        """
        ends_at = time.monotonic() + timeout_seconds
        return self.watched(function, *args, goes_on=lambda: time.monotonic() < ends_at)

    def watched(
        self, function: Callable[..., Any] | str, *args: Any, goes_on: Callable[[], bool]
    ) -> Any:
        """Call a function in the worker, and look after it every tenth of a second.

        Args:
            function: See `call`.
            *args: Arguments of the function.
            goes_on: Function that tells whether to wait on. If it does not, the process is ended.

        Returns:
            See `call`.

        Raises:
            Exception: The exception that the function raised.
        """
        try:
            ended = self._awaited(self._ready().submit(called, function, args), goes_on)
        except BrokenProcessPool as error:
            return self._bury(loky_private.exit_code(error))
        except KeyboardInterrupt:
            self.close()
            raise
        if isinstance(ended, Death):
            self.close()
        return ended

    def _awaited(self, future: Any, goes_on: Callable[[], bool]) -> Any:
        """The result of a call, or the death of a process that is not waited for any longer."""
        while not wait([future], LOOK_SECONDS).done:
            if not goes_on():
                return self._bury(None)
        return future.result()

    def prepare(self, function: Callable[..., Any] | str, *args: Any) -> None:
        """Start the process and call a function in it, without waiting for its result.

        Args:
            function: See `call`.
            *args: Arguments of the function.
        """
        self._ready().submit(called, function, args)

    @property
    def alive(self) -> bool:
        """Boolean, whether there is a process, with the global variables that earlier calls set."""
        return self._executor is not None

    def close(self) -> None:
        """End the process at once."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=True)
            self._executor = None
        if self._said is not None:
            self._said.close()
            self._said = None

    def _ready(self) -> ProcessPoolExecutor:
        if self._executor is None:
            # closed with the process, not at the end of a `with`
            said = tempfile.NamedTemporaryFile(prefix="kbatch-", suffix=".log")  # noqa: SIM115
            self._said = said
            environment = {
                **os.environ,
                **self.environment,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            }
            self._executor = ProcessPoolExecutor(
                max_workers=1,
                env=environment,
                initializer=_begin,
                initargs=(
                    os.getpid(),
                    self._said.name,
                    list(sys.path),
                    users_code.travelling(),
                ),
            )
            self.starts += 1
        return self._executor

    def _bury(self, exit_code: int | None) -> Death:
        with open(self._said.name, errors="replace") as lines:
            said = lines.read()[-SAID_CHARACTERS:]
        self.close()
        return Death(exit_code, said)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def travelling(value: Any) -> bytes:
    """Return a value as it travels to a worker."""
    return bytes(cloudpickle.dumps(value))


def called(function: Callable[..., Any] | str, args: tuple[Any, ...]) -> Any:
    """Call a function in the worker, and return its result.

    A function that exits ends the worker only; loky would end the parent too.
    """
    try:
        return (_named(function) if isinstance(function, str) else function)(*args)
    except SystemExit as error:
        # as Python does at the end of a program: None is 0, a text is 1
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return Death(code, f"sys.exit({error.code!r})")
    except KeyboardInterrupt:
        return Death(INTERRUPTED, "KeyboardInterrupt")
    except Exception as error:
        if _travels(error):
            raise
        # It would break the pool where it is unpickled, as a death of the process does.
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def _travels(value: Any) -> bool:
    """Whether a value can be pickled and unpickled."""
    try:
        pickle.loads(travelling(value))
    except Exception:  # objects raise errors of any kind here
        return False
    return True


def _named(text: str) -> Callable[..., Any]:
    """Import the function that `"package.module:function"` names."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def _begin(
    parent: int, said: str, path: list[str], users: tuple[str, list[str]] | None = None
) -> None:
    """Set up a worker: its import path, its output file, and its end when the parent is gone."""
    sys.path[:] = path
    if users is not None:
        users_code.use_folder(*users)
    loky_private.let_workers_grow()
    with open(said, "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_CHECK_SECONDS)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

TICK = 0.05  # seconds from one beat to the next; chosen by hand
BEAT_LATE = 0.25  # seconds that a beat must be late; a starved thread of nice 19 was late by 0.1
# Of a stop, this share at most may be explained otherwise. Chosen by hand.
BEAT_EXPLAINED = 0.3
MOST_FAULTS = (
    64  # pages read from disk: a gather of a mapped file has many, a process going on has few
)


@dataclass(frozen=True)
class Pulse:
    """What a process has used up to a moment.

    Attributes:
        seconds: Float, the moment.
        busy: Mapping from a thread to the seconds that it has run, or waited for a processor.
        process: Float, seconds of all processors.
        faults: Integer, pages that were read from disk.
    """

    seconds: float
    busy: dict[int, float] = field(default_factory=dict)
    process: float = 0.0
    faults: int = 0

    def stopped(self, later: Pulse) -> float:
        """For how many seconds the process was stopped between this pulse and a later one."""
        late = later.seconds - self.seconds - TICK
        if late < BEAT_LATE or later.faults - self.faults > MOST_FAULTS:
            return 0.0
        shared = self.busy.keys() & later.busy.keys()
        busiest = max((later.busy[each] - self.busy[each] for each in shared), default=0.0)
        # All processors may have run for the tick; a thread unknown to Python may have run on.
        process = later.process - self.process - TICK * (os.cpu_count() or 1)
        return late if max(busiest - TICK, process) < BEAT_EXPLAINED * late else 0.0


def taken(now: Callable[[], float], threads: Iterable[int]) -> Pulse:
    """Take the pulse of this process, with these threads."""
    faults = 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    busy = {thread: seconds for thread in threads if (seconds := _busy(thread)) is not None}
    return Pulse(now(), busy, time.process_time(), faults)


def _busy(thread: int) -> float | None:
    """Seconds that a thread has run or waited for a processor; `None` where nothing tells."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            run, waited, _ = file.read().split()
    except (OSError, ValueError):
        return None
    return (int(run) + int(waited)) / 1e9


class Heartbeat:
    """A thread that beats, and the seconds for which this process was stopped since it began."""

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        pulse: Callable[[], Pulse] | None = None,
    ) -> None:
        self._now, self._pulse = now, pulse or functools.partial(_own_pulse, now)
        self._lock = threading.Lock()
        self._last: Pulse | None = None
        self._thread: threading.Thread | None = None
        self._stopped = 0.0

    def __enter__(self) -> Heartbeat:
        self._last = self._pulse()
        # The thread must not keep alive what an error has left behind.
        self._thread = threading.Thread(target=_beat, args=(weakref.ref(self),), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped_seconds()
        with self._lock:
            self._last = self._thread = None

    def beats_in(self, thread: threading.Thread) -> bool:
        """Whether it was begun with this thread, and has not ended."""
        return self._thread is thread

    def stopped_seconds(self) -> float:
        """The seconds for which the process was stopped, those up to this moment included."""
        last = self._last
        if last is not None and self._now() - last.seconds > BEAT_LATE:
            self.beat()
        return self._stopped

    def beat(self) -> None:
        """Take the pulse, and note a stop since the last one."""
        with self._lock:
            if self._last is None:
                return
            pulse = self._pulse()
            self._stopped += self._last.stopped(pulse)
            self._last = pulse


def _own_pulse(now: Callable[[], float]) -> Pulse:
    known = (thread.native_id for thread in threading.enumerate())
    return taken(now, [each for each in known if each is not None])


def _beat(heartbeat: weakref.ref[Heartbeat]) -> None:
    own = threading.current_thread()
    while (living := heartbeat()) is not None and living.beats_in(own):
        living.beat()
        del living
        time.sleep(TICK)
