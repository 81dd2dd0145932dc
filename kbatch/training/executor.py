"""Executors: where the trainings of a search are made, and how many at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from kbatch.errors import SearchError, made_in_one_frame
from kbatch.recipe_fields import whole_number
from kbatch.runtime import device, gpus, ray_worker, users_code
from kbatch.runtime.ray_worker import RayWorker
from kbatch.runtime.worker import Worker

VISIBLE = "CUDA_VISIBLE_DEVICES"
# TensorFlow would take all cores in each of several processes.
CORES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


class TrainingWorker(Protocol):
    """A process that makes trainings; see `kbatch.runtime.worker.Worker`."""

    @property
    def alive(self) -> bool:
        """Boolean, whether there is a process, with what earlier calls left in it."""

    def watched(
        self, function: Callable[..., Any] | str, *args: Any, goes_on: Callable[[], bool]
    ) -> Any:
        """Call a function in the process, and ask every tenth of a second whether to wait on."""

    def close(self) -> None:
        """End the process at once."""


@runtime_checkable
class Executor(Protocol):
    """Says where the trainings of a search are made, and how many at once.

    Use your own for machines that neither `LocalExecutor` nor `RayExecutor` can reach.

    Attributes:
        workers: Integer, how many trainings are made at once.
    """

    @property
    def workers(self) -> int:
        """Integer, how many trainings are made at once."""

    def worker(self, number: int) -> TrainingWorker:
        """Return a worker, whose process starts when it is first called.

        Args:
            number: Integer, which of the workers, from 0.
        """


@made_in_one_frame
class LocalExecutor:
    """Makes trainings in worker processes of this machine, one for each GPU.

    Use it as `kbatch.Tuner(executor=…)` to search on all GPUs of a machine at once. Each worker
    sees one GPU only. Without GPUs, the workers share the cores: trainings of one recipe then do
    fewer updates in their seconds than one alone would. A warning says so if there are fewer cores
    than workers, since the baseline trains alone.

    Args:
        workers: Integer, how many trainings are made at once. Defaults to one for each GPU, or to
            one without any.

    Raises:
        SearchError: If there are fewer GPUs than workers, or `workers` is no whole number above 0.

    Example:
    ```python
    tuner = kbatch.Tuner(build, seconds_per_trial=60, executor=kbatch.LocalExecutor(workers=2))
    ```
    """

    def __init__(self, workers: int | None = None) -> None:
        # "/physical_device:GPU:3" is the fourth that TensorFlow sees
        self._gpus = [int(gpu.name.rsplit(":", 1)[1]) for gpu in gpus.gpus_of_trainings()]
        self.workers = len(self._gpus) or 1 if workers is None else checked(workers)
        if self._gpus and self.workers > len(self._gpus):
            raise SearchError(
                "Each worker must have a GPU of its own",
                f"{self.workers} workers, {len(self._gpus)} GPUs",
                f"Pass workers={len(self._gpus)} at most",
            )
        cores = device.cores()
        if not self._gpus and self.workers > cores:
            users_code.warn(
                f"{self.workers} workers share {cores} of the CPU's cores: trials are slowed "
                "down by each other, but the baseline trains alone and seems better than it is. "
                f"Pass workers={cores} at most."
            )

    def worker(self, number: int) -> Worker:
        """Return a worker; see `Executor.worker`."""
        if len(self._gpus) > 1:
            names = [each for each in os.environ.get(VISIBLE, "").split(",") if each]
            place = self._gpus[number]
            return Worker({VISIBLE: names[place] if names else str(place)})
        if self.workers == 1:
            return Worker()
        own = str(max(device.cores() // self.workers, 1))
        return Worker(dict.fromkeys(CORES, own))


@made_in_one_frame
class RayExecutor:
    """Makes trainings in worker processes of a Ray cluster, on several machines if it has them.

    Use it as `kbatch.Tuner(executor=…)`. Call `ray.init(address="auto")` before, or Ray takes the
    cluster that it knows of, or starts one on this machine. The folder of the project must be on a
    file system that all machines share: the data and the kept weights go through it. Needs
    `pip install "keras-kbatch[ray]"`.

    Args:
        workers: Integer, how many trainings are made at once. Defaults to one for each GPU of the
            cluster, or to one without any.
        gpus_per_worker: Float, GPUs that Ray reserves for each. Defaults to `1`, or to `0` if the
            cluster has none.
        cpus_per_worker: Float, cores that Ray reserves for each. Defaults to `1`.

    Raises:
        SearchError: If Ray is not installed, or the cluster cannot have so many workers.

    Example:
    ```python
    tuner = kbatch.Tuner(build, seconds_per_trial=60, executor=kbatch.RayExecutor(workers=8))
    ```
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        gpus_per_worker: float | None = None,
        cpus_per_worker: float = 1,
    ) -> None:
        has = ray_worker.cluster()
        gpus_of_cluster = has.get("GPU", 0)
        self.workers = int(gpus_of_cluster) or 1 if workers is None else checked(workers)
        needed = float(gpus_of_cluster > 0) if gpus_per_worker is None else gpus_per_worker
        self._resources = {"num_gpus": needed, "num_cpus": cpus_per_worker}
        for name, each in (("GPU", needed), ("CPU", cpus_per_worker)):
            if each * self.workers > has.get(name, 0):
                # Ray would let the training wait for ever
                raise SearchError(
                    "The cluster must have room for all workers",
                    f"{self.workers} workers of {each:g} {name}, {has.get(name, 0):g} in all",
                    "Pass fewer workers, or less for each",
                )

    def worker(self, number: int) -> RayWorker:
        """Return a worker; see `Executor.worker`."""
        return RayWorker(self._resources)


def checked(workers: Any) -> int:
    """Return a number of workers, checked."""
    if (whole_number(workers) or 0) < 1:
        raise SearchError("`workers` must be a whole number of at least 1", workers, "Pass 2, say")
    return int(workers)


def executor_of(executor: Any) -> Executor:
    """Return the executor of a tuner's argument.

    Args:
        executor: `"local"`, `"ray"` or an `Executor`.

    Raises:
        SearchError: If it is anything else, or cannot be used here.
    """
    if executor == "local":
        return LocalExecutor()
    if executor == "ray":
        return RayExecutor()
    if isinstance(executor, type) or not isinstance(executor, Executor):
        raise SearchError(
            '`executor` must be "local", "ray" or an Executor',
            executor,
            "Pass kbatch.LocalExecutor(workers=2), say",
        )
    checked(executor.workers)
    return executor
