"""Worker: a disposable process for what may run out of memory, hang, or take its process with it."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from loky import ProcessPoolExecutor, process_executor
from loky.process_executor import BrokenProcessPool

ORPHAN_CHECK_SECONDS = 0.5
SAID_CHARACTERS = 2000
INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended


@dataclass(frozen=True)
class Death:
    """How a worker ended in the middle of a call.

    Attributes:
        exit_code: Integer, as `subprocess` gives it: minus the number of the signal that killed it;
            `None` if the watchdog ended it. What it asked for, if the function ended with
            `SystemExit` or `KeyboardInterrupt`.
        said: What it last wrote to its standard output and error, or which of these two it was.
    """

    exit_code: int | None
    said: str

    def __str__(self) -> str:
        return (
            "it hung"
            if self.exit_code is None
            else f"its process died with exit code {self.exit_code}"
        )


class Worker:
    """A process that is started when it is first needed and again after it died.

    Functions and arguments travel by cloudpickle, so those defined in a notebook work too; what the
    functions print goes to a file of the worker's own. The process ends with `close`, and by itself
    when its parent is gone.

    Args:
        environment: Environment variables that the process has besides the parent's.

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
        """What the function returns in the worker.

        Args:
            function: The function, or its name such as `"package.module:function"`, for one whose
                module must not be imported here; globals that it leaves behind are there in the
                next call, while the process lives.
            *args: Its arguments.
            timeout_seconds: Float, after which the watchdog ends the process.

        Returns:
            The function's result, or the `Death` of the process, which is started anew at the next
            call.

        Raises:
            Exception: What the function raised.
        """
        try:
            ended = self._ready().submit(_called, function, args).result(timeout=timeout_seconds)
        except FutureTimeout:
            return self._bury(None)
        except BrokenProcessPool as error:
            code = re.search(r"\((-?\d+)\)", str(error))
            return self._bury(int(code.group(1)) if code else 1)
        except KeyboardInterrupt:
            self.close()
            raise
        if isinstance(ended, Death):
            self.close()
        return ended

    def prepare(self, function: Callable[..., Any] | str, *args: Any) -> None:
        """Start the process and let it begin with a function, whose result nobody waits for.

        Args:
            function: See `call`.
            *args: Its arguments.
        """
        self._ready().submit(_called, function, args)

    @property
    def alive(self) -> bool:
        """Whether there is a process, with what earlier calls left in it."""
        return self._executor is not None

    def close(self) -> None:
        """End the process at once, whatever it does."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=True)
            self._executor = None
        if self._said is not None:
            self._said.close()
            self._said = None

    def _ready(self) -> ProcessPoolExecutor:
        if self._executor is None:
            self._said = tempfile.NamedTemporaryFile(prefix="kbatch-worker-", suffix=".log")  # noqa: SIM115 (closed with the process)
            environment = {
                **os.environ,
                **self.environment,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            }
            self._executor = ProcessPoolExecutor(
                max_workers=1,
                env=environment,
                initializer=_begin,
                initargs=(os.getpid(), self._said.name, list(sys.path)),
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


def _called(function: Callable[..., Any] | str, args: tuple[Any, ...]) -> Any:
    """What the function returns; one that wants to end its process ends the worker, where loky would end the parent."""
    try:
        return (_named(function) if isinstance(function, str) else function)(*args)
    except SystemExit as error:
        # As Python does at the end of a program: nothing is 0, a text is an error.
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return Death(code, f"sys.exit({error.code!r})")
    except KeyboardInterrupt:
        return Death(INTERRUPTED, "KeyboardInterrupt")


def _named(text: str) -> Callable[..., Any]:
    """The function that `"package.module:function"` names."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def _begin(parent: int, said: str, path: list[str]) -> None:
    """Make the process quiet, mortal and able to import what its parent can."""
    sys.path[:] = path
    # or loky ends a worker that has grown by 300 MB between calls
    process_executor._MAX_MEMORY_LEAK_SIZE = float("inf")
    with open(said, "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_CHECK_SECONDS)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
