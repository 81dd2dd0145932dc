"""Search: the trainings of a tuner, each made once, and what is noted of them."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kbatch.axes import RESERVED
from kbatch.callbacks import user_callbacks
from kbatch.checks.accumulation import accumulation_of, settled
from kbatch.data import augmentation
from kbatch.data.validation import Data
from kbatch.errors import SpaceError
from kbatch.models.maker import ModelMaker
from kbatch.outcome import Goal, Outcome
from kbatch.recipe import Recipe
from kbatch.recompute._planner import apply_recipe
from kbatch.records import files
from kbatch.records.at_most_once import Job, name_of
from kbatch.records.project import Project
from kbatch.records.store import BASELINE_TRIAL, PARTED, Record
from kbatch.results.words import own_values
from kbatch.rules import scaling
from kbatch.runtime.worker import LOST, Death
from kbatch.search.rungs import EPOCHS, Share
from kbatch.space import Space
from kbatch.training import out_of_memory, run
from kbatch.training.arguments import FitArguments
from kbatch.training.pace import RunOptions
from kbatch.training.progress import Watcher
from kbatch.training.trial import Checkpoint, Order, Trained, Trainer, Trial, new_trial

# A training is made again if its process was stopped for more than this share of the horizon:
# caches, clock rates and buffers are others then. Chosen by hand.
MOST_STOPPED = 0.1
STOPPED = "the process was stopped"
MACHINES = 5  # that may be lost under a training before it is said to kill them; chosen by hand
# The fact of the baseline's values of the user's own hyperparameters. Projects of old versions have
# none, and their baselines took the defaults.
VALUES = "values"
IDLE = "idle"  # the fact of the names of own hyperparameters that have no effect in trials


@dataclass(frozen=True)
class Search:
    """All trainings of one model on one data set for one goal, each made at most once."""

    project: Project
    model_maker: ModelMaker
    space: Space
    data: Data  # training and validation data, prepared once
    goal: Goal
    arguments: FitArguments  # the user's other arguments of `fit`
    watcher: Watcher  # told of every training
    trainer: Trainer

    def train(
        self,
        job: Job,
        trial: Trial | None = None,
        callbacks: Sequence[Any] | None = None,
        checkpoint: Checkpoint | None = None,
        test: tf.data.Dataset | None = None,
        ask: Callable[[float], bool] | Share | None = None,
    ) -> Record:
        """Return the record of a training: the one that the project has, or a new one."""
        with self.project.hold():
            known = self.project.trainings.known(job)
            if known is not None:
                # The record of another trial with the same values may answer this one.
                known = dataclasses.replace(known, trial=job.trial)
                self.watcher.answered(known)
                if trial is not None:
                    trial.forget()
                return known
            record = self.project.trainings.crashed(job)
            begun = self.project.trainings.training
            if self.trainer.isolated:
                begun = self.project.trainings.isolated
            while record is None:
                with begun(job):
                    if checkpoint is not None:
                        files.check_room(self.project.directory, checkpoint.bytes)
                    order = self._order(job, callbacks, checkpoint, test, ask)
                    fresh = None if checkpoint is None else checkpoint.fresh()
                    trained = self.trainer.train(order, self.watcher, trial, fresh)
                record = self._record(job, trained, checkpoint)
                if isinstance(trained, Death):
                    words = f"{trained} during this training, which was made again"
                    job = dataclasses.replace(job, remarks=(*job.remarks, words))
                elif record is None:
                    job = _after_stop(job, trained.outcome)
                    callbacks, trial = None, self._another(job, trial)
            self.project.trainings.end(record)
        self.watcher.ended(record)
        if trial is not None:
            trial.forget()
        return record

    @property
    def baseline_recipe(self) -> Recipe:
        """`Recipe` of the baseline."""
        return self.settled(baseline_recipe(self.project, self.model_maker, self.space))

    def settled(self, recipe: Recipe) -> Recipe:
        """Return a recipe whose passes accumulate as the loss of the search needs."""
        return settled(recipe, accumulation_of(self.project.facts().get("checks", {})))

    @property
    def own_values(self) -> dict[str, Any]:
        """Dict, the values of the user's own hyperparameters that the baseline is built with."""
        return dict(self.project.facts().get(VALUES) or {})

    def baseline(self) -> Record:
        """Return the record of the baseline, which is trained if the project has none yet."""
        recipe = self.baseline_recipe
        job = baseline_job(self.project, self.model_maker, self.space, recipe)
        if self.project.trainings.known(job) is None:
            for strategy in (each for each in self.space.recompute if each != "none"):
                apply_recipe(
                    self.model_maker.raw(recipe.policy), strategy, x=self.model_maker.first.x
                )
        return self.train(job)

    def again(self, record: Record, seed: int, test: tf.data.Dataset | None = None) -> Record:
        """Train a recipe again with a fresh seed, for a confirmation, and return the record."""
        job = Job(
            "confirmation",
            record.trial,
            seed,
            record.recipe,
            {name: value for name, value in record.values.items() if name != EPOCHS},
            record.learning_rate_at_32,
        )
        return self.train(job, test=test)

    def without_idle(self, job: Job) -> Job:
        """Return the training of a trial without values that have no effect in it."""
        names = self.project.facts().get(IDLE) or ()
        values = {name: value for name, value in job.values.items() if name not in names}
        return dataclasses.replace(job, values=values)

    def parted(
        self, record: Record, baseline: Record, seed: int, test: tf.data.Dataset | None = None
    ) -> Record:
        """Train a recipe with a fresh seed and the baseline's own hyperparameters; see `again`."""
        values = {name: value for name, value in record.values.items() if name in RESERVED}
        values |= own_values(baseline)
        job = Job(PARTED, record.trial, seed, record.recipe, values, record.learning_rate_at_32)
        return self.train(job, test=test)

    def drawn(self, hp: Any) -> tuple[Recipe, tuple[str, ...]]:
        """Return the recipe that a tuner drew, its warm-up cut to the horizon, and remarks on it.

        Args:
            hp: `keras_tuner.HyperParameters` of the trial.
        """
        examples = self.data.training.examples
        seen = self.baseline().outcome.examples_per_second * self.goal.seconds
        recipe = self.space.recipe(hp, examples, seen or None)
        uncut = self.space.recipe(hp, examples)
        if recipe.warmup_updates >= uncut.warmup_updates:
            return recipe, ()
        updates = f"from {uncut.warmup_updates} to {recipe.warmup_updates} updates"
        share = f"{scaling.MOST_WARMUP:.0%} of the horizon"
        return recipe, (f"warm-up was cut {updates}, {share}",)

    def _order(
        self,
        job: Job,
        callbacks: Sequence[Any] | None,
        checkpoint: Checkpoint | None,
        test: tf.data.Dataset | None,
        ask: Callable[[float], bool] | Share | None,
    ) -> Order:
        if callbacks is None:
            callbacks = user_callbacks.copies_of_callbacks(
                self.arguments.callbacks, name_of(job.purpose, job.trial, job.seed)
            )
        options = RunOptions(
            job.seed,
            self.model_maker.own_policy,
            callbacks,
            class_weight=self.arguments.class_weight,
            verbose=self.arguments.verbose or 0,
            largest_passed=self.project.largest_passed(),
        )
        return Order(job, options, None if checkpoint is None else checkpoint.path, test, ask)

    def _record(
        self, job: Job, trained: Trained | Death, checkpoint: Checkpoint | None
    ) -> Record | None:
        """The record of a training that ended; `None` if it is to be made once more."""
        if isinstance(trained, Death):
            return self._after_death(job, trained)
        if self._was_stopped(job, trained.outcome):
            return None
        outcome = self._completed(job, trained.outcome)
        path = self._relative_path(checkpoint)
        return job.record(outcome, self.goal.score(outcome), trained.test, path, trained.device)

    def _after_death(self, job: Job, death: Death) -> Record | None:
        """The record of a training that killed its process: out of memory, or the second time."""
        outcome = out_of_memory.outcome_of_death(death)
        if outcome is not None:
            return job.record(outcome, 0.0)
        lost = sum(LOST in remark for remark in job.remarks)
        if death.is_of_machine and lost < MACHINES:
            return None  # which says nothing of the training
        self.project.trainings.died(job)
        record = self.project.trainings.crashed(job)
        if record is None:
            return None
        message = f"{record.outcome.message}; the last time {death}: {death.said}"
        outcome = dataclasses.replace(record.outcome, message=message)
        return dataclasses.replace(record, outcome=outcome)

    def _was_stopped(self, job: Job, outcome: Outcome) -> bool:
        """Whether the process was stopped for so long that the training is made again, once."""
        if outcome.failed or any(remark.startswith(STOPPED) for remark in job.remarks):
            return False
        return outcome.seconds.get("stopped", 0.0) > MOST_STOPPED * self.goal.seconds

    def _another(self, job: Job, trial: Trial | None) -> Trial | None:
        """The trial of a training that is made again: in this process it needs another model."""
        if self.trainer.isolated:
            return trial
        self.project.trainings.disturbed(job)
        if trial is not None:
            trial.forget()
        return new_trial(job, self.model_maker)

    def _completed(self, job: Job, outcome: Outcome) -> Outcome:
        """The outcome with the recipe's learning rate and all remarks."""
        # What is true of all trainings is told once a search, where its first training ends.
        told: tuple[str, ...] = ()
        if job.purpose == "baseline":
            found = self.project.facts().get("checks", {}).values()
            told = (self.goal.note, *(each["sentence"] for each in found))
        noted = tuple(note for note in told if note)
        rate = outcome.learning_rate or job.recipe.learning_rate
        return dataclasses.replace(
            outcome, learning_rate=rate, remarks=(*self._news(outcome), *noted, *job.remarks)
        )

    def _news(self, outcome: Outcome) -> list[str]:
        """The remarks of a training without those told once that an earlier one has."""
        records = self.project.store.records()
        earlier = [each for record in records for each in record.outcome.remarks]
        told = [each for each in run.TOLD_ONCE if any(old.startswith(each) for old in earlier)]
        return [each for each in outcome.remarks if not each.startswith(tuple(told))]

    def _relative_path(self, checkpoint: Checkpoint | None) -> str:
        """The checkpoint's path from the project's folder; empty if none was written."""
        if checkpoint is None or not checkpoint.path.exists():
            return ""
        path = os.path.relpath(checkpoint.path, self.project.directory)
        return "" if path.startswith(os.pardir) else path


def _after_stop(job: Job, outcome: Outcome) -> Job:
    """The job of a training that is made again, since its process was stopped."""
    seconds = outcome.seconds["stopped"]
    words = f"{STOPPED} for {seconds:.1f} s during this training, which was made again"
    return dataclasses.replace(job, remarks=(*job.remarks, words))


def baseline_recipe(project: Project, model_maker: ModelMaker, space: Space) -> Recipe:
    """Return the baseline of the user's model, which is read of the model once and then kept."""
    stored = project.facts().get("baseline")
    if stored is None:
        stored = model_maker.baseline(space.baseline).to_dict()
        project.agree({"baseline": stored})
    return Recipe.from_dict(stored)


def baseline_job(project: Project, model_maker: ModelMaker, space: Space, recipe: Recipe) -> Job:
    """Return the training of the baseline."""
    rate, values = space.rate_at_32(recipe), project.facts().get(VALUES) or {}
    return Job("baseline", BASELINE_TRIAL, model_maker.seed, recipe, values, rate)


CALIBRATION_UPDATES = range(5, 41)  # of the baseline; chosen by hand


def seconds_of_epochs(
    project: Project, job: Job, examples: int, epochs: int, trainer: Trainer
) -> float:
    """Return the seconds in which the baseline sees the data `epochs` times.

    They are `epochs * ceil(n / batch) * m`, with `m` the median of the baseline's updates 5 to 40,
    input included. `m` is measured once, and then kept with the project.
    """
    stored = project.facts().get("measured_horizon_seconds")
    if stored is None:
        median = trainer.update_seconds(job, CALIBRATION_UPDATES)
        stored = epochs * math.ceil(examples / job.recipe.batch_size) * median
        project.agree({"measured_horizon_seconds": stored})
    return float(stored)


def check_space(space: Any) -> None:
    """Refuse anything but a `Space` whose augmentations are registered."""
    if not isinstance(space, Space):
        raise SpaceError(
            "`space` must be a Space", space, "Pass kbatch.Space(batch_size=(32, 64)), say"
        )
    unknown = [name for name in space.augmentation if name not in augmentation.augmentation_names()]
    if unknown:
        raise SpaceError(
            f"`augmentation` must be among {', '.join(augmentation.augmentation_names())}",
            ", ".join(unknown),
            "Register it first with kbatch.register_augmentation",
        )
