"""Workers: trainings made in other processes, and threads that wait for them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import pickle
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import keras

from kbatch.data import augmentation
from kbatch.data.travel import Graph, parcel
from kbatch.data.validation import Data
from kbatch.errors import SearchError, made_in_one_frame
from kbatch.models.compilation import CompileArguments
from kbatch.models.maker import ModelMaker
from kbatch.models.traces import Traces
from kbatch.outcome import Goal
from kbatch.recipe_words import whole_number
from kbatch.records import files
from kbatch.records.at_most_once import Job
from kbatch.runtime import device, device_memory, signals, users_code
from kbatch.runtime.signals import Ended, Turns
from kbatch.runtime.worker import Death, RayWorker, Worker, ray_cluster, travelling
from kbatch.training._isolated_worker import ProgressFile, Settings, Setup
from kbatch.training.progress import Watcher
from kbatch.training.run import FullOfProgramsError
from kbatch.training.trial import Checkpoint, Order, Trained, Trainer, Trial

VISIBLE = "CUDA_VISIBLE_DEVICES"
# TensorFlow would take all cores in each of several processes.
CORES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


class TrainingWorker(Protocol):
    """A process that makes trainings; see `kbatch.runtime.worker.Process`."""

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
        self._gpus = [int(gpu.name.rsplit(":", 1)[1]) for gpu in device.gpus_of_trainings()]
        self.workers = len(self._gpus) or 1 if workers is None else checked_workers(workers)
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
        has = ray_cluster()
        gpus_of_cluster = has.get("GPU", 0)
        self.workers = int(gpus_of_cluster) or 1 if workers is None else checked_workers(workers)
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


def checked_workers(workers: Any) -> int:
    """Return a number of workers, checked."""
    if (whole_number(workers) or 0) < 1:
        raise SearchError("`workers` must be a whole number of at least 1", workers, "Pass 2, say")
    return int(workers)


def executor_of(executor: Any) -> Executor:
    """Return the executor of a tuner's argument."""
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
    checked_workers(executor.workers)
    return executor


ISOLATED_FOLDER = "isolated"
_numbers = itertools.count()
SIDE = "kbatch.training._isolated_worker"
# A process grows by 16 MB and 170 memory maps a trial, of the 65,530 that Linux allows
# (TensorFlow 2.21.0). Chosen by hand.
TRAININGS_OF_A_WORKER = 20
# A training that says nothing for so long is taken to hang; XLA may compile for minutes, and a
# validation of much data takes as long. Chosen by hand.
SILENT_SECONDS = 3600.0

_MUST = "The callbacks, losses and metrics of isolated trials must arrive in another process"
_DO = "Make it inside of `build`, leave it out, or leave out isolated=True and executor"


@dataclass
class _Seat:
    """A worker, with the file of its progress and the number of its trainings."""

    worker: TrainingWorker
    progress: Path
    trainings: int = 0

    def close(self) -> None:
        self.worker.close()
        self.trainings = 0


class IsolatedTrainer:
    """Makes each training in a worker process, which is renewed before it grows.

    A training that kills its process ends that process only. Each of several threads trains in a
    worker of its own, and hands the turn over while it waits for it.

    Attributes:
        workers: Integer, how many trainings can be made at once.
        turns: `Turns` of the threads that train.
    """

    isolated: ClassVar[bool] = True

    def __init__(
        self,
        model_maker: ModelMaker,
        data: Data,
        names: tuple[str, ...],
        goal: Goal | None,
        traces: Traces | None,
        folder: Path,
        executor: Executor,
    ) -> None:
        self._model_maker, self._data, self._names, self._goal = model_maker, data, names, goal
        self._traces = traces
        self.workers, self.turns = executor.workers, Turns()
        # Another trainer of this process may be at work in the project, or be collected meanwhile.
        self._folder = folder.resolve() / f"{ISOLATED_FOLDER}-{os.getpid()}-{next(_numbers)}"
        self._payload: bytes | None = None  # of the setup
        self._seats = [
            _Seat(executor.worker(number), self._folder / f"progress-{number}")
            for number in range(executor.workers)
        ]
        self._free = list(reversed(self._seats))
        weakref.finalize(self, _end, self._seats, self._folder)

    def train(
        self, order: Order, watcher: Watcher, trial: Trial | None, checkpoint: Checkpoint | None
    ) -> Trained | Death:
        """Make a training; see `Trainer.train`."""
        job = order.job
        if trial is not None and trial.failure is not None:
            watcher.started(job.purpose, job.trial, job.recipe, self._goal_seconds())
            return Trained(trial.failure, {}, device_memory.device_words())
        test = None if order.test is None else Graph.of(order.test, "test data")
        watcher.started(job.purpose, job.trial, job.recipe, self._goal_seconds())
        payload = _bytes_of(dataclasses.replace(order, test=None), "callbacks")
        with self._seat() as seat:
            try:
                made = self._call(seat, "train", payload, test, on_progress=watcher.progress)
            except FullOfProgramsError:  # a new process has room
                seat.close()
                made = self._call(seat, "train", payload, test, on_progress=watcher.progress)
            seat.trainings += 1
            if isinstance(made, Trained):
                if trial is not None:
                    trial.declared = made.hyperparameters
                # An out of memory inside a compiled program damages the process.
                if made.outcome.failed or seat.trainings >= TRAININGS_OF_A_WORKER:
                    seat.close()
        return cast(Trained | Death, made)

    def update_seconds(self, job: Job, updates: range) -> float:
        """Return the median seconds of some updates of a recipe; see `Trainer.update_seconds`."""
        with self._seat() as seat:
            median = self._call(seat, "update_seconds", job, updates)
        if isinstance(median, Death):
            raise SearchError(
                "The baseline must train, so that the horizon can be measured",
                f"{median}: {median.said}",
                "Pass seconds_per_trial instead of epochs, or a smaller baseline",
            )
        return float(median)

    def close_idle(self) -> None:
        """End the workers that no thread uses, so that others can have what they held."""
        for seat in self._free:
            seat.close()

    def close(self) -> None:
        """End the workers, and remove the files of the data."""
        self._payload = None
        _end(self._seats, self._folder)

    @contextmanager
    def _seat(self) -> Iterator[_Seat]:
        """A worker that no other thread uses."""
        seat = self._free.pop()
        try:
            yield seat
        finally:
            self._free.append(seat)

    def _goal_seconds(self) -> float:
        return 0.0 if self._goal is None else self._goal.seconds

    def _call(
        self,
        seat: _Seat,
        name: str,
        *args: Any,
        on_progress: Callable[[float, float | None], None] = lambda *progress: None,
    ) -> Any:
        """Call a function of the worker's side, in a worker that has the data."""
        self._prepare()
        progress = ProgressFile(seat.progress)
        if not seat.worker.alive:
            seat.trainings = 0
            # A cluster may have no room for hours, which is no hanging training.
            died = self._awaited(seat, "ready", goes_on=lambda: True)
            if died is None:
                died = self._awaited(seat, "begin", self._payload, goes_on=_limited())
            if isinstance(died, Death):
                return died
        last = progress.write(0.0, None)
        since = time.monotonic()

        def goes_on() -> bool:
            nonlocal last, since
            times, train_seconds, value = progress.read()
            if times != last:
                last, since = times, time.monotonic()
                on_progress(train_seconds, value)
            return time.monotonic() - since < SILENT_SECONDS

        own = (progress,) if name == "train" else ()
        return self._awaited(seat, name, *args, *own, goes_on=goes_on)

    def _awaited(
        self,
        seat: _Seat,
        name: str,
        *args: Any,
        goes_on: Callable[[], bool],
    ) -> Any:
        """What a worker returns, while other threads have the turn."""

        def looked() -> bool:
            with self.turns.taken():
                self.turns.check()
                return goes_on()

        with self.turns.given():
            return seat.worker.watched(f"{SIDE}:{name}", *args, goes_on=looked)

    def _prepare(self) -> None:
        """Write the files of the data, which all workers read, and what else travels to them."""
        if self._payload is not None:
            return
        for left in self._folder.parent.glob(f"{ISOLATED_FOLDER}-*"):
            if not left.name.startswith(
                f"{ISOLATED_FOLDER}-{os.getpid()}-"
            ):  # its process was killed
                shutil.rmtree(left, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        pipelines = augmentation.registered(self._names)
        try:
            data = parcel(self._data, self._folder)
        except OSError as error:
            raise files.refusal(error, self._folder) from error
        settings = Settings.of_process()
        setup = Setup(self._model_maker, data, self._goal, pipelines, settings, self._traces)
        self._payload = _bytes_of(setup, "build, loss, metrics or an augmentation")


def _limited() -> Callable[[], bool]:
    """A function that tells for so long as a training may be silent that it goes on."""
    ends_at = time.monotonic() + SILENT_SECONDS
    return lambda: time.monotonic() < ends_at


def _end(seats: Sequence[_Seat], folder: Path) -> None:
    """End workers, and remove the files of their data."""
    for seat in seats:
        seat.close()
    shutil.rmtree(folder, ignore_errors=True)


def _bytes_of(value: Any, words: str) -> bytes:
    """Return a value as it travels to a worker."""
    try:
        return travelling(value)
    except Exception as error:  # the user's objects raise errors of any kind
        raise SearchError(
            "What an isolated trial needs must be able to travel to another process",
            f"{words} that cannot: {error}",
            "Move what they hold into the functions, or leave out isolated=True and executor",
        ) from error


def check_travels(callbacks: Sequence[Any], arguments: CompileArguments) -> None:
    """Refuse callbacks, losses and metrics that would not arrive as they are, by name."""
    own = filter(None, keras.tree.flatten([arguments.loss, arguments.metrics]))
    for part in [*callbacks, *own]:
        try:
            arrived = pickle.loads(travelling(part))
        except Exception as error:  # objects raise errors of any kind when they are pickled
            raise SearchError(_MUST, f"{type(part).__name__}: {error}", _DO) from error
        lost = [name for name, value in _plain(part).items() if _plain(arrived).get(name) != value]
        if lost:
            words = f"{type(part).__name__} whose {', '.join(lost)} would be lost"
            do = f"Return it from get_config of the class. {_DO}"
            raise SearchError(_MUST, words, do)


def _plain(part: Any) -> dict[str, Any]:
    """The attributes of an object that are numbers and texts."""
    kinds = (str, int, float, bool)
    return {
        name: value
        for name, value in getattr(part, "__dict__", {}).items()
        if isinstance(value, kinds) and not name.startswith("_")
    }


LOOK_SECONDS = 0.1  # so that Ctrl-C is seen while the others end; chosen by hand


class _Helper:
    """One thread of a crew.

    Attributes:
        error: The error that ended it, or `None`.
    """

    def __init__(self, turns: Turns, work: Callable[[], None], name: str) -> None:
        self._turns, self._work = turns, work
        self.error: BaseException | None = None
        # `Thread.join` that Ctrl-C interrupts says of a thread that it has ended (Python 3.11).
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=name).start()

    def wait(self) -> None:
        """Wait until it has ended."""
        while not self._ended.wait(LOOK_SECONDS):
            pass

    def _run(self) -> None:
        try:
            with self._turns.taken():
                self._turns.check()
                self._work()
        except Ended:
            pass
        except BaseException as error:  # the block of the crew raises it
            self.error = error
            self._turns.end()
        finally:
            self._ended.set()


@contextmanager
def crew(
    turns: Turns,
    work: Callable[[int], None],
    helpers: int,
    done: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Let threads do the same work as the `with` block, each while the others wait.

    An error or Ctrl-C in one thread ends all. The block raises the first error of another thread.
    """

    def worked(number: int) -> None:
        work(number)
        done()

    started: list[_Helper] = []
    turns.begin()
    try:
        with turns.taken():
            for number in range(1, helpers + 1):
                started.append(
                    _Helper(turns, functools.partial(worked, number), f"kbatch-{number}")
                )
            yield
            done()
        for each in started:
            each.wait()
    except BaseException as error:
        turns.end()
        with signals.undisturbed():
            for each in started:
                each.wait()
        if not isinstance(error, Ended):
            raise
    for each in started:
        if each.error is not None:
            raise each.error


def beside(
    trainer: Trainer, work: Callable[[int], None], done: Callable[[], None] = lambda: None
) -> AbstractContextManager[None]:
    """Return a context in which a thread for each further worker of a trainer works too."""
    if not isinstance(trainer, IsolatedTrainer) or trainer.workers == 1:
        return nullcontext()
    return crew(trainer.turns, work, trainer.workers - 1, done)
