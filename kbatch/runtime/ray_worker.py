"""Ray worker: the same calls in a process of a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from kbatch.errors import SearchError
from kbatch.runtime import loky_private, users_code
from kbatch.runtime.worker import LOOK_SECONDS, Death, called


def lost_a_machine(error: Exception) -> bool:
    """Tell whether an actor ended because its machine was lost, or could not be reached.

    "The actor died because its node has died", the message of an `ActorDiedError`, or an
    `ActorUnavailableError`, ray/exceptions.py, Ray 2.60.0.
    """
    return type(error).__name__ == "ActorUnavailableError" or "its node has died" in str(error)


def cluster() -> dict[str, float]:
    """Return the resources of the Ray cluster, which is started on this machine if there is none.

    Raises:
        SearchError: If Ray is not installed.
    """
    ray = _ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
    return dict(ray.cluster_resources())


class RayWorker:
    """A process of a Ray cluster that starts when it is first needed, and again after it died.

    It is called as `kbatch.runtime.worker.Worker` is.

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

    def watched(
        self, function: Callable[..., Any] | str, *args: Any, goes_on: Callable[[], bool]
    ) -> Any:
        """Call a function in the worker; see `kbatch.runtime.worker.Worker.watched`."""
        ray = _ray()
        if self._actor is None:
            # without restarts: a new process would lack the data
            actor = ray.remote(max_restarts=0, max_task_retries=0, **self._resources)(_Process)
            self._actor = actor.remote(list(sys.path), users_code.travelling())
        ended = self._actor.call.remote(function, args)
        try:
            while not ray.wait([ended], timeout=LOOK_SECONDS)[0]:
                if not goes_on():
                    self.close()
                    return Death(None, "")
            result = ray.get(ended)
        except ray.exceptions.RayActorError as error:
            self.close()
            lost = lost_a_machine(error)
            return Death(loky_private.UNKNOWN_EXIT_CODE, str(error), is_of_machine=lost)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            self.close()
            of_memory = isinstance(error, ray.exceptions.OutOfMemoryError)
            said = f"out of memory: {error}" if of_memory else str(error)
            return Death(loky_private.UNKNOWN_EXIT_CODE, said, is_of_machine=not of_memory)
        except KeyboardInterrupt:
            self.close()
            raise
        if isinstance(result, Death):
            self.close()
        return result

    def close(self) -> None:
        """End the process at once."""
        if self._actor is not None:
            actor, self._actor = self._actor, None
            if _ray().is_initialized():
                _ray().kill(actor)


class _Process:
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
