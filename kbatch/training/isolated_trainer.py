"""The isolated trainer: the trainings of a search are made in the workers of an executor."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import keras

from kbatch.data import augmentation
from kbatch.data.travel import Graph, parcel
from kbatch.data.validation import Data
from kbatch.errors import SearchError
from kbatch.goal import Goal
from kbatch.models.compilation import CompileArguments
from kbatch.models.maker import ModelMaker
from kbatch.records import files
from kbatch.records.project import Job
from kbatch.runtime import device_memory
from kbatch.runtime.signals import Turns
from kbatch.runtime.worker import Death, travelling
from kbatch.training._isolated_worker import Settings, Setup
from kbatch.training._progress_file import ProgressFile
from kbatch.training.checkpoint import Checkpoint
from kbatch.training.executor import Executor, TrainingWorker
from kbatch.training.progress import Watcher
from kbatch.training.run import FullOfProgramsError
from kbatch.training.trainer import Order, Trained
from kbatch.training.trial import Trial

FOLDER = "isolated"
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

    Args:
        model_maker: `ModelMaker` that makes the models.
        data: Training and validation data.
        names: Tuple of strings, the augmentation pipelines of the space.
        goal: `Goal` of every trial; `None` before its seconds are known.
        folder: Folder of the project's records, where files of the data lie meanwhile.
        executor: `Executor` that has the workers.

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
        folder: Path,
        executor: Executor,
    ) -> None:
        self._model_maker, self._data, self._names, self._goal = model_maker, data, names, goal
        self.workers, self.turns = executor.workers, Turns()
        # Another trainer of this process may be at work in the project, or be collected meanwhile.
        self._folder = folder.resolve() / f"{FOLDER}-{os.getpid()}-{next(_numbers)}"
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
        """Return the median seconds of some updates of a recipe; see `Trainer.update_seconds`.

        Raises:
            SearchError: If the process dies.
        """
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
        for left in self._folder.parent.glob(f"{FOLDER}-*"):
            if not left.name.startswith(f"{FOLDER}-{os.getpid()}-"):  # its process was killed
                shutil.rmtree(left, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        pipelines = augmentation.registered(self._names)
        try:
            data = parcel(self._data, self._folder)
        except OSError as error:
            raise files.refusal(error, self._folder) from error
        settings = Settings.of_process()
        setup = Setup(self._model_maker, data, self._goal, pipelines, settings)
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
    """Return a value as it travels to a worker.

    Raises:
        SearchError: If it cannot.
    """
    try:
        return travelling(value)
    except Exception as error:  # the user's objects raise errors of any kind
        raise SearchError(
            "What an isolated trial needs must be able to travel to another process",
            f"{words} that cannot: {error}",
            "Move what they hold into the functions, or leave out isolated=True and executor",
        ) from error


def check(callbacks: Sequence[Any], arguments: CompileArguments) -> None:
    """Refuse callbacks, losses and metrics that would not arrive as they are, by name.

    Args:
        callbacks: The user's callbacks.
        arguments: Loss and metrics beside `build`.

    Raises:
        SearchError: If one would not.
    """
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
