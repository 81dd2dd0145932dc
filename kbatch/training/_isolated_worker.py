"""Worker side of isolated trials: trains what arrives, and writes its progress."""

from __future__ import annotations

import dataclasses
import math
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kbatch.data import augmentation
from kbatch.data.travel import Graph, Parcel
from kbatch.data.validation import Data
from kbatch.errors import DataError, SearchError
from kbatch.models.maker import ModelMaker
from kbatch.models.traces import Traces
from kbatch.outcome import Goal
from kbatch.records import files
from kbatch.records.at_most_once import Job
from kbatch.runtime import garbage
from kbatch.training.progress import Watcher
from kbatch.training.trial import LocalTrainer, Order, Trained, Trial, largest_bytes

NUMBERS = struct.Struct("=qdd")


@dataclass
class ProgressFile:
    """Tells another process how a training goes, on another machine too if both see the file."""

    path: Path
    times: int = 0  # how often this object has written it

    def write(self, train_seconds: float, value: float | None) -> int:
        """Write the training seconds and the last value measured."""
        self.times += 1
        numbers = NUMBERS.pack(self.times, train_seconds, math.nan if value is None else value)
        # in place, so that a reader always finds a file
        with open(self.path, "r+b" if self.path.exists() else "wb", buffering=0) as file:
            file.write(numbers)
        return self.times

    def read(self) -> tuple[int, float, float | None]:
        """Return how often it was written, the training seconds and the last value measured."""
        times, train_seconds, value = NUMBERS.unpack(self.path.read_bytes())
        return times, train_seconds, None if math.isnan(value) else value


@dataclass(frozen=True)
class Settings:
    """What the user may have set for all of Keras and TensorFlow in a process."""

    floatx: str  # Keras' default type of floats
    image_data_format: str  # where Keras expects the channels
    has_tf32: bool  # whether TensorFlow may multiply float32 as TF32

    @classmethod
    def of_process(cls) -> Settings:
        """Return those of this process."""
        return cls(
            keras.config.floatx(),
            keras.config.image_data_format(),
            tf.config.experimental.tensor_float_32_execution_enabled(),
        )

    def apply(self) -> None:
        """Set them in this process."""
        keras.config.set_floatx(self.floatx)
        keras.config.set_image_data_format(self.image_data_format)
        tf.config.experimental.enable_tensor_float_32_execution(self.has_tf32)


@dataclass(frozen=True)
class Setup:
    """What all trainings of a search share, on its way to a worker."""

    model_maker: ModelMaker
    parcel: Parcel
    goal: Goal | None  # of every trial; `None` before its seconds are known
    pipelines: Mapping[str, Any]  # the user's own augmentation pipelines by name
    settings: Settings
    traces: Traces | None  # empty on their way, and of each worker then


@dataclass(frozen=True)
class _Prepared:
    """A setup with its data, in the worker."""

    setup: Setup
    data: Data


_prepared: list[_Prepared] = []


def ready() -> None:
    """Do nothing, in a process that has imported what it needs."""


def begin(payload: bytes) -> None:
    """Prepare this process for trainings."""
    setup: Setup = _received(payload)
    setup.settings.apply()
    for name in setup.pipelines.keys() - set(augmentation.augmentation_names()):
        augmentation.register_augmentation(name, setup.pipelines[name])
    data = setup.parcel.data()
    try:
        next(iter(data.training.unshuffled(1)))
        next(iter(data.validation))
    except Exception as error:  # steps of the user's dataset raise errors of any kind
        raise DataError(
            "The data of an isolated trial must work in another process",
            f"{type(error).__name__}: {str(error).splitlines()[0]}",
            "Leave out variables and resources of your own in the dataset, or isolated=True and "
            "executor",
        ) from error
    _prepared[:] = [_Prepared(setup, data)]
    garbage.freeze()


def _received(payload: bytes) -> Any:
    """Return what travelled here as bytes."""
    try:
        return pickle.loads(payload)
    except Exception as error:  # the user's objects raise errors of any kind
        raise SearchError(
            "What an isolated trial needs must come out of its bytes in another process",
            f"{type(error).__name__}: {error}",
            "Make the losses, metrics and callbacks inside of `build`, register their classes with "
            "keras.saving.register_keras_serializable in a module that `build` imports, or leave "
            "out isolated=True and executor",
        ) from error


def train(payload: bytes, test: Graph | None, progress: ProgressFile) -> Trained:
    """Make a training in this process, and write its kept weights."""
    order: Order = _received(payload)
    maker, job, trial = _prepared[0].setup.model_maker, order.job, Trial()
    hp = maker.hyperparameters(job.values)
    trial.make(dataclasses.replace(maker, seed=job.seed), job.recipe, hp)
    if order.checkpoint is not None and trial.failure is None:
        files.check_room(order.checkpoint.parent, largest_bytes(trial.model))
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

    def __init__(self, file: ProgressFile) -> None:
        self._file = file

    def progress(self, train_seconds: float, value: float | None) -> None:
        self._file.write(train_seconds, value)


def _trainer() -> LocalTrainer:
    setup = _prepared[0].setup
    return LocalTrainer(setup.model_maker, _prepared[0].data, setup.goal, setup.traces)
