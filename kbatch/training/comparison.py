"""Comparison: what all trainings share that are to be compared, and the baseline that they are compared with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kbatch.building.making import Maker
from kbatch.callbacks.measuring import numbers
from kbatch.data.batches import Data
from kbatch.recipe import Recipe
from kbatch.recompute.following import follow
from kbatch.records.record import BASELINE_TRIAL, Record
from kbatch.space import Space
from kbatch.training import user_callbacks
from kbatch.training.arguments import FitArguments
from kbatch.training.attempt import Attempt
from kbatch.training.goal import Goal
from kbatch.training.project import Identity, Project, Trained
from kbatch.training.running import Around, median_update_seconds
from kbatch.training.watching import Watcher

CALIBRATION_UPDATES = range(5, 41)


@dataclass(frozen=True)
class Comparison:
    """Trainings of one model on one data set for one goal.

    Attributes:
        maker: Makes the models.
        space: Where the recipes are from.
        data: What they train on and are measured on.
        goal: What they are given and judged by.
        arguments: What else the user passed to `fit`.
        watcher: Told of every training.
    """

    maker: Maker
    space: Space
    data: Data
    goal: Goal
    arguments: FitArguments
    watcher: Watcher

    def train(
        self, project: Project, attempt: Attempt, model: keras.Model, identity: Identity, callbacks: list[Any], checkpoint_callbacks: list[Any]
    ) -> Trained:
        """Train a model that the attempt made, and score it.

        Args:
            project: The project that knows what fitted before.
            attempt: What made the model.
            model: The compiled model.
            identity: What is trained.
            callbacks: The user's callbacks, for this training alone.
            checkpoint_callbacks: Callbacks that come last at the end of an epoch.
        """
        self.watcher.started(identity.purpose, identity.trial, identity.recipe, self.goal.seconds)
        passed = project.largest_passed()
        around = dataclasses.replace(self._around(identity.seed, callbacks), checkpoint_callbacks=checkpoint_callbacks, largest_passed=passed)
        outcome = attempt.train(model, identity.recipe, self.data, self.goal, around)
        if identity.purpose == "baseline" and self.goal.note:  # said once a search, where its first training ends
            outcome = dataclasses.replace(outcome, remarks=(*outcome.remarks, self.goal.note))
        return Trained(outcome, self.goal.score(outcome))

    def baseline(self, project: Project) -> Record:
        """The record of the baseline, trained if the project has none yet.

        Raises:
            RecomputeError: If the space asks for a plan that this model cannot have; before anything is trained.
        """
        recipe = baseline_recipe(project, self.maker, self.space)
        identity = Identity("baseline", BASELINE_TRIAL, self.maker.seed, recipe, {}, self.space.rate_at_32(recipe))
        if project.known(identity) is None:
            for strategy in (each for each in self.space.recompute if each != "none"):
                follow(self.maker.raw(recipe.policy), strategy)
        return self._alone(project, identity)

    def retrain(self, project: Project, record: Record, seed: int, test: tf.data.Dataset | None = None) -> Record:
        """The record of a recipe trained again with another seed, for a confirmation.

        Args:
            project: The project that `record` belongs to.
            record: What to train again.
            seed: Integer, the fresh seed.
            test: Batches that the kept weights are evaluated on besides. Optional.
        """
        identity = Identity("confirmation", record.trial, seed, record.recipe, dict(record.values), record.learning_rate_at_32)
        return self._alone(project, identity, test)

    def _alone(self, project: Project, identity: Identity, test: tf.data.Dataset | None = None) -> Record:
        """A training outside KerasTuner, made at most once."""

        def train() -> Trained:
            attempt, hp = Attempt(), self.maker.hyperparameters(identity.values)
            model = attempt.make(dataclasses.replace(self.maker, seed=identity.seed), identity.recipe, hp)
            trained = self.train(project, attempt, model, identity, user_callbacks.copies(self.arguments.callbacks, _name(identity)), [])
            if test is not None and trained.outcome.value is not None:
                values = model.evaluate(test, verbose=0, return_dict=True)
                trained = dataclasses.replace(trained, test=numbers(values))
            del model
            attempt.forget()
            return trained

        return self.once(project, identity, train)

    def once(self, project: Project, identity: Identity, train: Callable[[], Trained]) -> Record:
        """`Project.once`, with the watcher told how it ended."""
        known = project.known(identity) is not None
        record = project.once(identity, train)
        shown = dataclasses.replace(record, trial=identity.trial)  # another trial's record may have answered this one
        (self.watcher.answered if known else self.watcher.ended)(shown)
        return record

    def _around(self, seed: int, callbacks: list[Any]) -> Around:
        return Around(
            seed=seed,
            own_policy=self.maker.own_policy,
            callbacks=callbacks,
            class_weight=self.arguments.class_weight,
            verbose=self.arguments.verbose or 0,
            watcher=self.watcher,
        )


def _name(identity: Identity) -> str:
    """The name of a training outside KerasTuner, for its files."""
    if identity.purpose == "baseline":
        return "baseline"
    recipe = "baseline" if identity.trial == BASELINE_TRIAL else f"trial{identity.trial}"
    return f"{identity.purpose}_{recipe}_seed{identity.seed}"


def baseline_recipe(project: Project, maker: Maker, space: Space) -> Recipe:
    """The baseline as the user's model has it, asked of the model once and then of the project."""
    stored = project.facts().get("baseline")
    if stored is None:
        recipe = maker.baseline(space.baseline)
        stored = dataclasses.asdict(recipe)
        project.agree({"baseline": stored})
    return Recipe.from_dict(stored)


def seconds_of_epochs(project: Project, maker: Maker, space: Space, data: Data, epochs: int) -> float:
    """The horizon that lets the baseline see the data `epochs` times, measured once and then kept with the project.

    It is `epochs * ceil(n / batch) * m`, with `m` the median of the baseline's updates 5 to 40, input included.
    """
    stored = project.facts().get("measured_horizon_seconds")
    if stored is None:
        recipe = baseline_recipe(project, maker, space)
        attempt = Attempt()
        model = attempt.make(maker, recipe)
        around = Around(seed=maker.seed, own_policy=maker.own_policy)
        median = median_update_seconds(model, recipe, data, CALIBRATION_UPDATES, around)
        del model
        attempt.forget()
        stored = epochs * math.ceil(data.training.examples / recipe.batch_size) * median
        project.agree({"measured_horizon_seconds": stored})
    return float(stored)
