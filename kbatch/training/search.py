"""A search: the values that all trainings of one project share, and how each is trained."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kbatch.building.model_maker import ModelMaker
from kbatch.callbacks.validation_pass import evaluated, numbers
from kbatch.data.batches import Data
from kbatch.goal import Goal
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.recompute._recipe_plan import apply_recipe
from kbatch.records import disk
from kbatch.records.record import BASELINE_TRIAL, Record
from kbatch.rules import warmup
from kbatch.search.rungs import Questions
from kbatch.space import Space
from kbatch.training import user_callbacks
from kbatch.training.checkpoint import Checkpoint
from kbatch.training.fit_arguments import FitArguments
from kbatch.training.job import Job, name_of
from kbatch.training.progress import Watcher
from kbatch.training.project import Project
from kbatch.training.run import run
from kbatch.training.run_options import RunOptions
from kbatch.training.trial import Trial


@dataclass(frozen=True)
class Search:
    """All trainings of one model on one data set for one goal, each made at most once.

    Attributes:
        project: `Project` that keeps the records.
        model_maker: `ModelMaker` that makes the models.
        space: `Space` of the recipes.
        data: Training and validation data, prepared once.
        goal: `Goal` of every trial.
        arguments: The user's other arguments of `fit`.
        watcher: `Watcher` that is told of every training.
    """

    project: Project
    model_maker: ModelMaker
    space: Space
    data: Data
    goal: Goal
    arguments: FitArguments
    watcher: Watcher

    def train(
        self,
        job: Job,
        trial: Trial | None = None,
        callbacks: Sequence[Any] | None = None,
        checkpoint: Checkpoint | None = None,
        test: tf.data.Dataset | None = None,
        ask: Callable[[int, float], bool] | None = None,
    ) -> Record:
        """Return the record of a training: the one that the project has, or a new one.

        Args:
            job: The training.
            trial: `Trial` whose model a tuner has made. Defaults to a new one.
            callbacks: The user's callbacks for this training. Defaults to copies of those of the
                search.
            checkpoint: `Checkpoint` for the kept weights. Optional.
            test: Batches that the kept weights are evaluated on too. Optional.
            ask: Function of a rung's number and of what the trial held there, which tells whether
                it goes on. Optional.
        """
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
            if record is None:
                with self.project.trainings.training(job):
                    if checkpoint is not None:
                        disk.check_room(self.project.directory, checkpoint.bytes)
                    trial = trial or self._new_trial(job)
                    options = self._options(job, callbacks, checkpoint)
                    if ask is not None:
                        questions = Questions(self.goal.seconds, self.goal.gain, ask)
                        options = dataclasses.replace(options, goes_on=questions)
                    self.watcher.started(job.purpose, job.trial, job.recipe, self.goal.seconds)
                    outcome = trial.failure or run(
                        trial.model, job.recipe, self.data, self.goal, options
                    )
                    outcome = self._completed(job, trial.measured(outcome))
                    record = job.record(
                        outcome,
                        self.goal.score(outcome),
                        _test_metrics(trial.model, outcome, test),
                        self._relative_path(checkpoint),
                    )
            self.project.trainings.end(record)
        self.watcher.ended(record)
        if trial is not None:
            trial.forget()
        return record

    @property
    def baseline_recipe(self) -> Recipe:
        """`Recipe` of the baseline."""
        return baseline_recipe(self.project, self.model_maker, self.space)

    def baseline(self) -> Record:
        """Return the record of the baseline, which is trained if the project has none yet.

        Raises:
            RecomputeError: If the model cannot have a plan of the space. It is raised before
                anything is trained.
        """
        recipe = self.baseline_recipe
        job = Job(
            "baseline",
            BASELINE_TRIAL,
            self.model_maker.seed,
            recipe,
            {},
            self.space.rate_at_32(recipe),
        )
        if self.project.trainings.known(job) is None:
            for strategy in (each for each in self.space.recompute if each != "none"):
                apply_recipe(self.model_maker.raw(recipe.policy), strategy)
        return self.train(job)

    def again(self, record: Record, seed: int, test: tf.data.Dataset | None = None) -> Record:
        """Train a recipe again with a fresh seed, for a confirmation, and return the record.

        Args:
            record: Record of the recipe's first training.
            seed: Integer, the fresh seed.
            test: Batches that the kept weights are evaluated on too. Optional.
        """
        job = Job(
            "confirmation",
            record.trial,
            seed,
            record.recipe,
            dict(record.values),
            record.learning_rate_at_32,
        )
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
        share = f"{warmup.MOST_OF_HORIZON:.0%} of the horizon"
        return recipe, (f"warm-up was cut {updates}, {share}",)

    def _new_trial(self, job: Job) -> Trial:
        """A trial outside KerasTuner, with its model."""
        trial = Trial()
        trial.make(
            dataclasses.replace(self.model_maker, seed=job.seed),
            job.recipe,
            self.model_maker.hyperparameters(job.values),
        )
        return trial

    def _options(
        self, job: Job, callbacks: Sequence[Any] | None, checkpoint: Checkpoint | None
    ) -> RunOptions:
        if callbacks is None:
            callbacks = user_callbacks.copies(
                self.arguments.callbacks, name_of(job.purpose, job.trial, job.seed)
            )
        return RunOptions(
            seed=job.seed,
            own_policy=self.model_maker.own_policy,
            callbacks=callbacks,
            checkpoint_callbacks=() if checkpoint is None else checkpoint.callbacks,
            class_weight=self.arguments.class_weight,
            verbose=self.arguments.verbose or 0,
            on_progress=self.watcher.progress,
            largest_passed=self.project.largest_passed(),
        )

    def _completed(self, job: Job, outcome: Outcome) -> Outcome:
        """The outcome with the recipe's learning rate and all remarks."""
        # What is true of all trainings is told once a search, where its first training ends.
        told = (self.goal.note, self._overlap()) if job.purpose == "baseline" else ()
        noted = tuple(note for note in told if note)
        rate = outcome.learning_rate or job.recipe.learning_rate
        return dataclasses.replace(
            outcome, learning_rate=rate, remarks=(*outcome.remarks, *noted, *job.remarks)
        )

    def _overlap(self) -> str:
        """A sentence on validation examples that are trained on too; empty without any."""
        found = self.project.facts().get("overlap")
        if not found or not found["shared"]:
            return ""
        return (
            f"{found['shared']:,} of {found['looked_at']:,} validation examples that were looked "
            "at are training examples too"
        )

    def _relative_path(self, checkpoint: Checkpoint | None) -> str:
        """The checkpoint's path from the project's folder; empty if none was written."""
        if checkpoint is None or not checkpoint.path.exists():
            return ""
        return os.path.relpath(checkpoint.path, self.project.directory)


def _test_metrics(model: Any, outcome: Outcome, test: tf.data.Dataset | None) -> dict[str, float]:
    """The metrics of the kept weights on test data, if there are both."""
    if test is None or outcome.value is None:
        return {}
    return numbers(evaluated(model, test))


def baseline_recipe(project: Project, model_maker: ModelMaker, space: Space) -> Recipe:
    """Return the baseline of the user's model, which is read of the model once and then kept."""
    stored = project.facts().get("baseline")
    if stored is None:
        stored = model_maker.baseline(space.baseline).to_dict()
        project.agree({"baseline": stored})
    return Recipe.from_dict(stored)
