"""The isolated trainer: each training of a search is made in a worker process."""

from __future__ import annotations

import dataclasses
import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from kbatch.building.model_maker import ModelMaker
from kbatch.data import augmentation
from kbatch.data.batches import Data
from kbatch.data.travel import Graph, parcel
from kbatch.device import meter
from kbatch.errors import SearchError
from kbatch.goal import Goal
from kbatch.runtime.worker import Death, Worker, travelling
from kbatch.training._isolated_worker import Setup
from kbatch.training._progress_file import ProgressFile
from kbatch.training.checkpoint import Checkpoint
from kbatch.training.job import Job
from kbatch.training.progress import Watcher
from kbatch.training.trainer import Order, Trained
from kbatch.training.trial import Trial

SIDE = "kbatch.training._isolated_worker"
# A process grows by 16 MB and 170 memory maps a trial, of the 65,530 that Linux allows
# (TensorFlow 2.21.0). Chosen by hand.
TRAININGS_OF_A_WORKER = 20
# A training that says nothing for so long is taken to hang; XLA may compile for minutes, and a
# validation of much data takes as long. Chosen by hand.
SILENT_SECONDS = 3600.0


class IsolatedTrainer:
    """Makes each training in a worker process, which is renewed before it grows.

    A training that kills its process ends that process only.

    Args:
        model_maker: `ModelMaker` that makes the models.
        data: Training and validation data.
        names: Tuple of strings, the augmentation pipelines of the space.
        goal: `Goal` of every trial; `None` before its seconds are known.
    """

    isolated: ClassVar[bool] = True

    def __init__(
        self, model_maker: ModelMaker, data: Data, names: tuple[str, ...], goal: Goal | None
    ) -> None:
        self._model_maker, self._data, self._names, self._goal = model_maker, data, names, goal
        self._worker = Worker()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._setup: Setup | None = None
        self._trainings = 0  # of the worker that lives

    def train(
        self, order: Order, watcher: Watcher, trial: Trial | None, checkpoint: Checkpoint | None
    ) -> Trained | Death:
        """Make a training; see `Trainer.train`."""
        job = order.job
        if trial is not None and trial.failure is not None:
            watcher.started(job.purpose, job.trial, job.recipe, self._goal_seconds())
            return Trained(trial.failure, {}, meter.device_words())
        test = None if order.test is None else Graph.of(order.test, "test data")
        watcher.started(job.purpose, job.trial, job.recipe, self._goal_seconds())
        made: Trained | Death = self._call(
            "train", dataclasses.replace(order, test=None), test, on_progress=watcher.progress
        )
        self._trainings += 1
        if isinstance(made, Trained):
            if trial is not None:
                trial.declared = made.hyperparameters
            # An out of memory inside a compiled program damages the process.
            if made.outcome.failed or self._trainings >= TRAININGS_OF_A_WORKER:
                self._worker.close()
        return made

    def update_seconds(self, job: Job, updates: range) -> float:
        """Return the median seconds of some updates of a recipe; see `Trainer.update_seconds`.

        Raises:
            SearchError: If the process dies.
        """
        median = self._call("update_seconds", job, updates)
        if isinstance(median, Death):
            raise SearchError(
                "The baseline must train, so that the horizon can be measured",
                f"{median}: {median.said}",
                "Pass seconds_per_trial instead of epochs, or a smaller baseline",
            )
        return float(median)

    def close(self) -> None:
        """End the worker, and remove the files of the data."""
        self._worker.close()
        self._setup = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _goal_seconds(self) -> float:
        return 0.0 if self._goal is None else self._goal.seconds

    def _call(
        self,
        name: str,
        *args: Any,
        on_progress: Callable[[float, float | None], None] | None = None,
    ) -> Any:
        """Call a function of the worker's side, in a worker that has the data."""
        progress = self._begun()
        if isinstance(progress, Death):
            return progress
        last, since = 0, time.monotonic()

        def goes_on() -> bool:
            nonlocal last, since
            times, train_seconds, value = progress.read()
            if times > last:
                last, since = times, time.monotonic()
                if on_progress is not None:
                    on_progress(train_seconds, value)
            return time.monotonic() - since < SILENT_SECONDS

        own = () if on_progress is None else (progress.path,)
        return self._worker.watched(f"{SIDE}:{name}", *args, *own, goes_on=goes_on)

    def _begun(self) -> ProgressFile | Death:
        """A worker that has the data, and the file of its progress."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(
                prefix="kbatch-data-", ignore_cleanup_errors=True
            )
        folder = Path(self._folder.name)
        if self._setup is None:
            pipelines = augmentation.registered(self._names)
            data = parcel(self._data, folder)
            self._setup = Setup(self._model_maker, data, self._goal, pipelines)
        if not self._worker.alive:
            self._trainings = 0
            try:
                died = self._worker.call(
                    f"{SIDE}:begin", self._setup, timeout_seconds=SILENT_SECONDS
                )
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                raise SearchError(
                    "What an isolated trial needs must be able to travel to another process",
                    f"build, loss, metrics or an augmentation that cannot: {error}",
                    "Move what they hold into the functions, or leave out isolated=True",
                ) from error
            if isinstance(died, Death):
                return died
        return ProgressFile(folder / "progress", "w+")


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse callbacks that cannot travel to another process, by name.

    Raises:
        SearchError: If one cannot.
    """
    for callback in callbacks:
        try:
            travelling(callback)
        except Exception as error:  # objects raise errors of any kind when they are pickled
            raise SearchError(
                "The callbacks of isolated trials must be able to travel to another process",
                f"{type(callback).__name__}: {error}",
                "Leave it out, or isolated=True",
            ) from error
