"""Replayed search: the trials of an oracle, answered with recorded trainings."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras_tuner

from kbatch import outcome
from kbatch.recipe import Recipe
from kbatch.search.oracle import REPEAT, RUNG_MARKS, Oracle
from kbatch.search.tuner_border import OBJECTIVE
from kbatch.testing._recipe_points import RecipePoints
from kbatch.testing._table import RecordedTraining

LEAST = 0.01  # horizons that a training costs at least, so that failures come to an end


@dataclass(frozen=True)
class Replayed:
    """One training of a replay.

    Attributes:
        recipe: `Recipe` that was trained.
        seconds: Float, training seconds it took.
        gain: Float, what it had gained above chance.
        recommended: `Recipe` that the policy would recommend after it.
    """

    recipe: Recipe
    seconds: float
    gain: float
    recommended: Recipe


class Table(Protocol):
    """What a replayed search asks of a table of trainings; see `kbatch.testing.Replay`."""

    recipes: tuple[Recipe, ...]
    horizon: float
    points: RecipePoints

    @property
    def of(self) -> Mapping[Recipe, Sequence[RecordedTraining]]:
        """The trainings of each recipe."""

    def held(self, training: RecordedTraining) -> float:
        """Return the value above chance that a training held.

        Args:
            training: A training of the table.
        """

    def gain(self, training: RecordedTraining, seconds: float) -> float:
        """Return what a training had gained above chance.

        Args:
            training: A training of the table.
            seconds: Float, training seconds after which it is stopped.
        """


class ReplayedSearch:
    """Answers the trials of an oracle with the trainings of a table.

    Args:
        table: The table.
        oracle: `keras_tuner.Oracle` whose space has the table's dimensions.
        seeds: Sequence of integers, which of a recipe's trainings its first trial is given, as
            those of a search all have one seed, and which a repeat is given.
    """

    def __init__(self, table: Table, oracle: keras_tuner.Oracle, seeds: Sequence[int]) -> None:
        self._table, self._oracle, self._seeds = table, oracle, seeds
        self._untried = set(range(len(table.recipes)))
        self._given: dict[str, Recipe] = {}

    def trials(self, horizons: float) -> list[Replayed]:
        """Answer trials until the next may be too long, or no recipe is left.

        Args:
            horizons: Float, training seconds of the search in horizons.
        """
        spent, replayed = 0.0, list[Replayed]()
        while self._untried and spent + 1 <= horizons + LEAST:
            trial = self._oracle.create_trial("tuner0")
            if trial.status != "RUNNING":
                break
            replayed.append(self._answer(trial))
            spent += max(replayed[-1].seconds / self._table.horizon, LEAST)
        return replayed

    def _answer(self, trial: Any) -> Replayed:
        """Give an oracle the training that its trial asks for."""
        training = self._training(trial)
        seconds = self._seconds(trial, training)
        self._end(trial, training, stopped=seconds < self._table.horizon)
        best = self._given[self._oracle.get_best_trials(1)[0].trial_id]
        gain = self._table.gain(training, seconds)
        return Replayed(training.recipe, training.seconds(seconds), gain, best)

    def _training(self, trial: Any) -> RecordedTraining:
        """A training of the untried recipe nearest to the values of a trial, or of a repeated one.

        A repeat is given another seed; the same one if the table has no other.
        """
        hp = trial.hyperparameters
        drawn = {each.name: hp.get(each.name) for each in hp.space if hp.is_active(each)}
        repeated = REPEAT in hp.values
        if repeated:
            recipe = self._given[hp.values[REPEAT]]
        else:
            place = self._table.points.nearest(drawn, self._untried)
            self._untried.discard(place)
            recipe = self._table.recipes[place]
        self._given[trial.trial_id] = recipe
        if not isinstance(self._oracle, keras_tuner.oracles.GridSearchOracle):
            # so that a model learns of what was trained; a grid goes on from what it drew
            hp.values.update(self._table.points.values(recipe))
        trainings = self._table.of[recipe]
        return trainings[self._seeds[min(int(repeated), len(self._seeds) - 1)] % len(trainings)]

    def _rungs(self) -> list[float]:
        """The seconds of the rungs."""
        return [outcome.marks(self._table.horizon)[mark - 1] for mark in RUNG_MARKS]

    def _seconds(self, trial: Any, training: RecordedTraining) -> float:
        """The seconds after which the oracle stops a training; the horizon if it does not."""
        if isinstance(self._oracle, Oracle):
            for rung, seconds in enumerate(self._rungs()):
                gain = self._table.gain(training, seconds)
                if not self._oracle.goes_on(trial.trial_id, rung, gain):
                    return seconds
        return self._table.horizon

    def _end(self, trial: Any, training: RecordedTraining, stopped: bool) -> None:
        """Tell the oracle how a trial went, as a tuner does."""
        with contextlib.redirect_stdout(io.StringIO()):
            if not stopped:
                score = self._table.held(training) / self._table.horizon
                self._oracle.update_trial(trial.trial_id, {OBJECTIVE: score}, step=0)
            trial.status = "STOPPED" if stopped else "COMPLETED"
            self._oracle.end_trial(trial)
