"""An isolated training: the worker's side, which makes and trains the models of a search."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbatch.building.model_maker import ModelMaker
from kbatch.data import augmentation
from kbatch.data.batches import Data
from kbatch.data.travel import Graph, Parcel
from kbatch.errors import DataError
from kbatch.goal import Goal
from kbatch.records import disk
from kbatch.training._progress_file import ProgressFile
from kbatch.training.checkpoint import largest_bytes
from kbatch.training.job import Job
from kbatch.training.progress import Watcher
from kbatch.training.trainer import LocalTrainer, Order, Trained
from kbatch.training.trial import Trial


@dataclass(frozen=True)
class Setup:
    """What all trainings of a search share, on its way to a worker.

    Attributes:
        model_maker: `ModelMaker` that makes the models.
        parcel: `Parcel` of the data.
        goal: `Goal` of every trial; `None` before its seconds are known.
        pipelines: The user's own augmentation pipelines by name.
    """

    model_maker: ModelMaker
    parcel: Parcel
    goal: Goal | None
    pipelines: Mapping[str, Any]


@dataclass(frozen=True)
class _Prepared:
    """A setup with its data, in the worker."""

    setup: Setup
    data: Data


_prepared: list[_Prepared] = []


def begin(setup: Setup) -> None:
    """Prepare this process for trainings.

    Raises:
        DataError: If the data do not work here.
    """
    for name in setup.pipelines.keys() - set(augmentation.names()):
        augmentation.register_augmentation(name, setup.pipelines[name])
    data = setup.parcel.data()
    try:
        next(iter(data.training.unshuffled(1)))
    except Exception as error:  # steps of the user's dataset raise errors of any kind
        raise DataError(
            "The data of an isolated trial must work in another process",
            f"{type(error).__name__}: {str(error).splitlines()[0]}",
            "Leave out variables and resources of your own in the dataset, or isolated=True",
        ) from error
    _prepared[:] = [_Prepared(setup, data)]


def train(order: Order, test: Graph | None, progress: Path) -> Trained:
    """Make a training in this process, and write its kept weights.

    Args:
        order: The training, without its test batches.
        test: `Graph` of them. Optional.
        progress: Path of the file that tells how it goes.
    """
    maker, job, trial = _prepared[0].setup.model_maker, order.job, Trial()
    hp = maker.hyperparameters(job.values)
    trial.make(dataclasses.replace(maker, seed=job.seed), job.recipe, hp)
    if order.checkpoint is not None and trial.failure is None:
        disk.check_room(order.checkpoint.parent, largest_bytes(trial.model))
    order = dataclasses.replace(order, test=None if test is None else test.dataset())
    made = _trainer().train(order, _Written(progress), trial, None)
    if order.checkpoint is not None and trial.model and made.outcome.value is not None:
        trial.model.save_weights(order.checkpoint)
    trial.forget()
    return dataclasses.replace(made, hyperparameters=hp.get_config())


def update_seconds(job: Job, updates: range) -> float:
    """Return the median seconds of some updates of a recipe; see `Trainer.update_seconds`."""
    return _trainer().update_seconds(job, updates)


class _Written(Watcher):
    """Writes the progress of a training into a file."""

    def __init__(self, path: Path) -> None:
        self._file = ProgressFile(path, "r+")

    def progress(self, train_seconds: float, value: float | None) -> None:
        self._file.write(train_seconds, value)


def _trainer() -> LocalTrainer:
    setup = _prepared[0].setup
    return LocalTrainer(setup.model_maker, _prepared[0].data, setup.goal)
