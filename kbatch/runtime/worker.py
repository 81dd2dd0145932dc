"""Worker: a disposable process, here or in a Ray cluster, that calls functions and may die."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
from loky import ProcessPoolExecutor
from loky.process_executor import BrokenProcessPool

from kbatch.errors import SearchError
from kbatch.runtime import loky_private, users_code

if TYPE_CHECKING:
    from typing_extensions import Self

ORPHAN_CHECK_SECONDS = 0.5  # chosen by hand, not tuned
LOOK_SECONDS = 0.1  # from one look after a call to the next; chosen by hand
SAID_CHARACTERS = 2000  # kept of a dead worker's output; chosen by hand, not tuned
LOST = "its machine was lost"
INTERRUPTED = 130  # exit code in a shell of a program that Ctrl-C ended


@dataclass(frozen=True)
class Death:
    """The end of a worker in the middle of a call."""

    # Exit code of the process as `subprocess` gives it: the negative number of the signal that
    # killed it. `None` if the watchdog ended it. If the function raised `SystemExit` or
    # `KeyboardInterrupt`, the exit code that a program would have.
    exit_code: int | None
    said: str  # the last output of the process, or the name of that exception
    is_of_machine: bool = False  # whether the machine of the process was lost

    def __str__(self) -> str:
        if self.is_of_machine:
            return LOST
        return (
            "it hung"
            if self.exit_code is None
            else f"its process died with exit code {self.exit_code}"
        )


class Process(ABC):
    """A disposable process that starts when it is first needed, and again after it died.

    Functions and arguments travel by cloudpickle, so functions defined in a notebook work too. The
    process ends with `close`.
    """

    def call(self, function: Callable[..., Any] | str, *args: Any, timeout_seconds: float) -> Any:
        """Call a function in the process, which is ended after so many seconds; see `watched`."""
        ends_at = time.monotonic() + timeout_seconds
        return self.watched(function, *args, goes_on=lambda: time.monotonic() < ends_at)

    def watched(
        self, function: Callable[..., Any] | str, *args: Any, goes_on: Callable[[], bool]
    ) -> Any:
        """Call a function in the process, which is ended once `goes_on` does not let it go on.

        It is asked every tenth of a second. The function may be named, `"package.module:function"`,
        if its module must not be imported here. Global variables that it sets are there in the next
        call, while the process lives. Returns its result, or the `Death` of the process.
        """
        try:
            ended = self._ended(function, args, goes_on)
        except KeyboardInterrupt:
            self.close()
            raise
        if isinstance(ended, Death):
            self.close()
        return ended

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Boolean, whether there is a process, with the global variables that earlier calls set."""

    @abstractmethod
    def close(self) -> None:
        """End the process at once."""

    @abstractmethod
    def _ended(
        self, function: Callable[..., Any] | str, args: tuple[Any, ...], goes_on: Callable[[], bool]
    ) -> Any:
        """What a call returned, or the death of the process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Worker(Process):
    """A process of this machine, whose output goes to a file. It also ends when its parent is gone.

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

    def _ended(
        self, function: Callable[..., Any] | str, args: tuple[Any, ...], goes_on: Callable[[], bool]
    ) -> Any:
        try:
            future = self._ready().submit(called, function, args)
            while not wait([future], LOOK_SECONDS).done:
                if not goes_on():
                    return self._death(None)
            return future.result()
        except BrokenProcessPool as error:
            return self._death(loky_private.exit_code(error))

    def prepare(self, function: Callable[..., Any] | str, *args: Any) -> None:
        """Start the process and call a function in it, without waiting for its result."""
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

    def _death(self, exit_code: int | None) -> Death:
        """The death of the process, with what it said last."""
        with open(self._said.name, errors="replace") as lines:
            return Death(exit_code, lines.read()[-SAID_CHARACTERS:])


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


def lost_a_machine(error: Exception) -> bool:
    """Tell whether an actor ended because its machine was lost, or could not be reached.

    "The actor died because its node has died", the message of an `ActorDiedError`, or an
    `ActorUnavailableError`, ray/exceptions.py, Ray 2.60.0.
    """
    return type(error).__name__ == "ActorUnavailableError" or "its node has died" in str(error)


def ray_cluster() -> dict[str, float]:
    """Return the resources of the Ray cluster, which is started on this machine if there is none.

    Raises:
        SearchError: If Ray is not installed.
    """
    ray = _ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
    return dict(ray.cluster_resources())


class RayWorker(Process):
    """A process of a Ray cluster.

    Args:
        resources: Mapping, `num_gpus` and `num_cpus` that Ray reserves.
    """

    def __init__(self, resources: Mapping[str, float]) -> None:
        self._resources = dict(resources)
        self._actor: Any = None

    @property
    def alive(self) -> bool:
        """Boolean, whether there is a process, with what earlier calls left in it."""
        return self._actor is not None

    def _ended(
        self, function: Callable[..., Any] | str, args: tuple[Any, ...], goes_on: Callable[[], bool]
    ) -> Any:
        ray = _ray()
        if self._actor is None:
            # without restarts: a new process would lack the data
            actor = ray.remote(max_restarts=0, max_task_retries=0, **self._resources)(_Actor)
            self._actor = actor.remote(list(sys.path), users_code.travelling())
        ended = self._actor.call.remote(function, args)
        try:
            while not ray.wait([ended], timeout=LOOK_SECONDS)[0]:
                if not goes_on():
                    return Death(None, "")
            return ray.get(ended)
        except ray.exceptions.RayActorError as error:
            lost = lost_a_machine(error)
            return Death(loky_private.UNKNOWN_EXIT_CODE, str(error), is_of_machine=lost)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            of_memory = isinstance(error, ray.exceptions.OutOfMemoryError)
            said = f"out of memory: {error}" if of_memory else str(error)
            return Death(loky_private.UNKNOWN_EXIT_CODE, said, is_of_machine=not of_memory)

    def close(self) -> None:
        """End the process at once."""
        if self._actor is not None:
            actor, self._actor = self._actor, None
            if _ray().is_initialized():
                _ray().kill(actor)


class _Actor:
    """What Ray keeps in the process: nothing but its import path."""

    def __init__(self, path: list[str], users: tuple[str, list[str]] | None) -> None:
        sys.path[:] = [*path, *(each for each in sys.path if each not in path)]
        if users is not None:
            users_code.use_folder(*users)

    def call(self, function: Callable[..., Any] | str, args: tuple[Any, ...]) -> Any:
        return called(function, args)


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions  # a folder named ray passes for a module, and has none
    except ImportError as error:
        raise SearchError(
            "Ray must be installed for trainings on a Ray cluster",
            "no module ray",
            'Use pip install "keras-kbatch[ray]"',
        ) from error
    return ray
