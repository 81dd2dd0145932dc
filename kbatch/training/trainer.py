"""Trainers: where the trainings of a search are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import tensorflow as tf

from kbatch.callbacks.horizon import evaluated, single_numbers
from kbatch.data.validation import Data
from kbatch.goal import Goal
from kbatch.models.maker import ModelMaker
from kbatch.outcome import Outcome
from kbatch.records.project import Job
from kbatch.runtime import device_memory, gpus
from kbatch.runtime.worker import Death
from kbatch.search.oracle import Questions
from kbatch.training.checkpoint import Checkpoint
from kbatch.training.endless_fit import median_update_seconds
from kbatch.training.progress import Watcher
from kbatch.training.run import run
from kbatch.training.run_options import RunOptions
from kbatch.training.trial import Trial


@dataclass(frozen=True)
class Order:
    """A training to make, with all that it needs besides model, data and goal of the search.

    Attributes:
        job: The training.
        callbacks: The user's callbacks for this training.
        class_weight: Mapping from class to weight, or `None`.
        verbose: Keras' `verbose`.
        largest_passed: Integer, the largest micro-batch that has trained in the project.
        checkpoint: Path of the file for the kept weights. Optional.
        test: Batches that the kept weights are evaluated on too. Optional.
        ask: Function of a rung's number and of what the trial had gained there, which tells
            whether it goes on. Optional.
    """

    job: Job
    callbacks: Sequence[Any] = ()
    class_weight: Mapping[int, float] | None = None
    verbose: Any = 0
    largest_passed: int = 0
    checkpoint: Path | None = None
    test: tf.data.Dataset | None = None
    ask: Callable[[int, float], bool] | None = None

    def options(
        self,
        model_maker: ModelMaker,
        goal: Goal,
        on_progress: Callable[[float, float | None], None],
        checkpoint_callbacks: Sequence[Any] = (),
    ) -> RunOptions:
        """Return the options of the training.

        Args:
            model_maker: Maker of the models of the search.
            goal: Goal of the search.
            on_progress: Function of the training seconds and the last value measured.
            checkpoint_callbacks: Callbacks that come last at the end of an epoch.
        """
        asked = None if self.ask is None else Questions(goal.seconds, goal.gain, self.ask)
        return RunOptions(
            seed=self.job.seed,
            own_policy=model_maker.own_policy,
            callbacks=self.callbacks,
            checkpoint_callbacks=checkpoint_callbacks,
            class_weight=self.class_weight,
            verbose=self.verbose,
            on_progress=on_progress,
            largest_passed=self.largest_passed,
            goes_on=asked,
        )


@dataclass(frozen=True)
class Trained:
    """A training that ended.

    Attributes:
        outcome: `Outcome`.
        test: Dict, the metrics of the kept weights on test data; empty without any.
        device: String, the training device in words.
        hyperparameters: Dict, `keras_tuner.HyperParameters.get_config()` of what `build` declared
            in another process; empty in this one.
    """

    outcome: Outcome
    test: dict[str, float]
    device: str
    hyperparameters: dict[str, Any] = field(default_factory=dict)


class Trainer(Protocol):
    """Makes the trainings of a search, one at a time.

    Attributes:
        isolated: Boolean, whether it makes them in another process, whose death it survives.
    """

    isolated: ClassVar[bool]

    def train(
        self, order: Order, watcher: Watcher, trial: Trial | None, checkpoint: Checkpoint | None
    ) -> Trained | Death:
        """Make a training.

        Args:
            order: The training.
            watcher: `Watcher` that is told that it begins, and how it goes.
            trial: `Trial` whose model a tuner has made. Optional.
            checkpoint: `Checkpoint` for the kept weights. Optional.

        Returns:
            What was measured; or the `Death` of the process that trained.
        """

    def update_seconds(self, job: Job, updates: range) -> float:
        """Return the median seconds of some updates of a recipe, input included.

        Args:
            job: The training; it says the recipe.
            updates: Range of the updates that count, from 1.
        """

    def close(self) -> None:
        """Give back what the trainer holds; a later training takes it again."""


@dataclass(frozen=True)
class LocalTrainer:
    """Makes the trainings of a search in this process.

    Attributes:
        model_maker: `ModelMaker` that makes the models.
        data: Training and validation data.
        goal: `Goal` of every trial; `None` before its seconds are known.
    """

    isolated: ClassVar[bool] = False
    model_maker: ModelMaker
    data: Data
    goal: Goal | None

    def __post_init__(self) -> None:
        gpus.check_gpus_not_left()

    def train(
        self, order: Order, watcher: Watcher, trial: Trial | None, checkpoint: Checkpoint | None
    ) -> Trained:
        """Make a training; see `Trainer.train`."""
        job, goal = order.job, cast(Goal, self.goal)  # known once trainings begin
        trial = trial or new_trial(job, self.model_maker)
        writing = () if checkpoint is None else checkpoint.callbacks
        options = order.options(self.model_maker, goal, watcher.progress, writing)
        watcher.started(job.purpose, job.trial, job.recipe, goal.seconds)
        outcome = trial.failure or run(trial.model, job.recipe, self.data, goal, options)
        outcome = trial.measured(outcome)
        test = {}
        if order.test is not None and outcome.value is not None:
            test = single_numbers(evaluated(trial.model, order.test))
        # The model of a trial may be built already while the baseline trains what they share.
        self.model_maker.start.put_back()
        return Trained(outcome, test, device_memory.device_words())

    def update_seconds(self, job: Job, updates: range) -> float:
        """Return the median seconds of some updates of a recipe; see `Trainer.update_seconds`."""
        trial = new_trial(job, self.model_maker)
        options = RunOptions(seed=job.seed, own_policy=self.model_maker.own_policy)
        median = median_update_seconds(trial.model, job.recipe, self.data, updates, options)
        trial.forget()
        return median

    def close(self) -> None:
        """There is nothing to give back."""


def new_trial(job: Job, model_maker: ModelMaker) -> Trial:
    """Return a trial outside KerasTuner, with its model.

    Args:
        job: The training.
        model_maker: `ModelMaker` of the search.
    """
    trial = Trial()
    trial.make(
        model_maker.with_seed(job.seed),
        job.recipe,
        model_maker.hyperparameters(job.values),
    )
    return trial
