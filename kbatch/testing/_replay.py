"""Replay: recorded trainings given again to a tuner in milliseconds, to compare ways of search."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras_tuner
import numpy as np

from kbatch import scoring
from kbatch.errors import SearchError
from kbatch.recipe import Recipe
from kbatch.runtime import keras_tuner_private
from kbatch.search.oracle import Oracle
from kbatch.search.rungs import RUNG_MARKS
from kbatch.testing import _table
from kbatch.testing._recipe_points import RecipePoints
from kbatch.testing._table import RecordedTraining
from kbatch.tuner import OBJECTIVE

OracleFactory = Callable[..., keras_tuner.Oracle]
STOCK: dict[str, OracleFactory] = {
    "random": keras_tuner.oracles.RandomSearchOracle,
    "bayesian": keras_tuner.oracles.BayesianOptimizationOracle,
}
LEAST = 0.01  # horizons that a training costs at least, so that failures come to an end


@dataclass(frozen=True)
class Replayed:
    """One training of a replay.

    Attributes:
        recipe: `Recipe` that was trained.
        seconds: Float, training seconds it took.
        gain: Float, the value above chance that it held.
        recommended: `Recipe` that the policy would recommend after it.
    """

    recipe: Recipe
    seconds: float
    gain: float
    recommended: Recipe


class Replay:
    """Recorded trainings of many recipes, given again to a way of search.

    Use it to compare tuners without training: each recipe was trained once with each of some seeds,
    and a replayed trial is answered with one of these trainings. A tuner that draws other values is
    given the nearest recipe that it has not been given yet, and the search ends with the last one.

    Args:
        trainings: Sequence of `RecordedTraining`, of one horizon. Every recipe should have the same
            number of seeds.
        noise: Float, share of what differs between the seeds of a recipe: `0.25` moves each
            training to a quarter of its distance from the mean of its recipe. Defaults to `1.0`.

    Attributes:
        recipes: Tuple of the `Recipe`s of the table.
        horizon: Float, training seconds of every trial.

    Raises:
        SearchError: If the trainings are of different horizons, or all at chance.

    Example:
    ```python
    replay = kbatch.testing.Replay.load("scripts/results/replay_drawn.jsonl.gz")
    recipe = replay.run("random", horizons=10, seed=0)
    print(recipe, replay.regret(recipe))
    ```
    """

    def __init__(self, trainings: Sequence[RecordedTraining], noise: float = 1.0) -> None:
        self.trainings, self.noise = tuple(trainings), noise
        self._of: dict[Recipe, list[RecordedTraining]] = {}
        for each in self.trainings:
            self._of.setdefault(each.recipe, []).append(each)
        self.recipes = tuple(self._of)
        horizons = sorted({each.horizon for each in self.trainings})
        if len(horizons) != 1:
            raise SearchError(
                "The trainings of a table must have one horizon",
                ", ".join(f"{each:g} s" for each in horizons) or "no training",
                "Make a table for each",
            )
        self.horizon = horizons[0]
        self._points = RecipePoints(self.recipes)
        self._means = {
            recipe: float(np.mean([each.gain(self.horizon) for each in own]))
            for recipe, own in self._of.items()
        }
        self._best = max(self._means.values())
        if not self._best:
            raise SearchError(
                "A table must have a recipe that learned something",
                f"{len(self.recipes)} recipes at chance",
                "Record longer trainings",
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str], noise: float = 1.0) -> Replay:
        """Read a table: one line of JSON for each training, `.gz` or not.

        Args:
            path: Path of the file. A line holds `recipe` (the fields of a `Recipe`), `seed`,
                `horizon`, `chance` and `curve`, a list of `[train_seconds, value]`, and may hold
                `peak_bytes`.
            noise: See the class.

        Raises:
            RecordError: If there is no such file, or a line is no training.
        """
        return cls(_table.read(path), noise)

    @classmethod
    def of_project(cls, directory: str | os.PathLike[str], noise: float = 1.0) -> Replay:
        """Make a table of the records of a search whose recipes were all confirmed.

        Args:
            directory: Folder of the tuner's project.
            noise: See the class.
        """
        return cls(_table.of_project(directory), noise)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table, compressed if the path ends with `.gz`.

        Args:
            path: Path of the file.
        """
        _table.write(path, self.trainings)

    def mean(self, recipe: Recipe) -> float:
        """Return the mean value above chance of a recipe at the horizon, over the table's seeds.

        Args:
            recipe: `Recipe` of the table.
        """
        return self._means[recipe]

    def regret(self, recipe: Recipe) -> float:
        """Return the share of the best mean score that is lost with a recipe, from 0 to 1.

        Args:
            recipe: `Recipe` of the table.
        """
        return 1 - self.mean(recipe) / self._best

    def gain(self, training: RecordedTraining, seconds: float) -> float:
        """Return the value above chance that a training held, with this replay's noise.

        Args:
            training: `RecordedTraining` of the table.
            seconds: Float, training seconds after which it is stopped.
        """
        mean = float(np.mean([each.gain(seconds) for each in self._of[training.recipe]]))
        return mean + self.noise * (training.gain(seconds) - mean)

    def run(self, policy: str | OracleFactory, horizons: float = 10, seed: int = 0) -> Recipe:
        """Return the recipe that a policy recommends after some horizons of training seconds.

        Args:
            policy: `"kbatch"`, which begins at the table's first recipe; `"random"` or
                `"bayesian"` for KerasTuner's own; or a function that makes a
                `keras_tuner.Oracle` of `objective`, `max_trials` and `seed`, such as its class.
            horizons: Float, training seconds of the search in horizons. Defaults to `10`.
            seed: Integer, seed of the policy and of which trainings it is given. Defaults to `0`.

        Raises:
            SearchError: If the policy is unknown, or one horizon is more than it may take.
        """
        replayed = self.trials(policy, horizons, seed)
        if not replayed:
            raise SearchError(
                "`horizons` must allow for one trial at least", horizons, "Pass 10, say"
            )
        return replayed[-1].recommended

    def trials(
        self, policy: str | OracleFactory, horizons: float = 10, seed: int = 0
    ) -> list[Replayed]:
        """Return all trainings that a policy asked for within some horizons of training seconds.

        Args:
            policy: See `run`.
            horizons: See `run`.
            seed: See `run`.
        """
        random = np.random.default_rng(seed)
        oracle = self._factory(policy)(
            objective=keras_tuner.Objective(OBJECTIVE, "max"), max_trials=10**6, seed=seed + 1
        )
        hp = keras_tuner.HyperParameters()
        self._points.declare(hp)
        numbers = [random.permutation(len(self._of[recipe])) for recipe in self.recipes]
        with tempfile.TemporaryDirectory(prefix="kbatch-replay-") as folder:
            _settle(oracle, folder, hp)
            return self._replayed(oracle, horizons, numbers)

    def _factory(self, policy: Any) -> OracleFactory:
        if callable(policy):
            return policy  # type: ignore[no-any-return]
        if policy == "kbatch":
            return functools.partial(Oracle, start=self._points.values(self.recipes[0]))
        if policy not in STOCK:
            raise SearchError(
                "`policy` must be the name of one, or a function that makes an oracle",
                policy,
                f"Pass one of kbatch, {', '.join(STOCK)}, or the class of an oracle",
            )
        return STOCK[policy]

    def _replayed(
        self, oracle: keras_tuner.Oracle, horizons: float, numbers: list[Any]
    ) -> list[Replayed]:
        """Answer the trials of an oracle until the next may be too long, or no recipe is left."""
        spent, replayed = 0.0, list[Replayed]()
        untried, given = set(range(len(self.recipes))), dict[str, Recipe]()
        while untried and spent + 1 <= horizons + LEAST:
            trial = oracle.create_trial("tuner0")
            if trial.status != "RUNNING":
                break
            drawn = {each.name: trial.hyperparameters.get(each.name) for each in _active(trial)}
            place = self._points.nearest(drawn, untried)
            untried.discard(place)
            recipe = given[trial.trial_id] = self.recipes[place]
            if not isinstance(oracle, keras_tuner.oracles.GridSearchOracle):
                # so that a model learns of what was trained; a grid goes on from what it drew
                trial.hyperparameters.values.update(self._points.values(recipe))
            training = self._of[recipe][numbers[place][0]]
            seconds = self._until(oracle, trial, training)
            spent += max(training.seconds(seconds) / self.horizon, LEAST)
            gain = self.gain(training, seconds)
            _end(oracle, trial, gain / self.horizon if seconds == self.horizon else None)
            best = given[oracle.get_best_trials(1)[0].trial_id]
            replayed.append(Replayed(recipe, training.seconds(seconds), gain, best))
        return replayed

    def _until(self, oracle: Any, trial: Any, training: RecordedTraining) -> float:
        """The seconds after which an oracle stops a training; the horizon if it does not."""
        if isinstance(oracle, Oracle):
            for rung, mark in enumerate(RUNG_MARKS):
                seconds = scoring.marks(self.horizon)[mark - 1]
                if not oracle.goes_on(trial.trial_id, rung, self.gain(training, seconds)):
                    return seconds
        return self.horizon


def _settle(oracle: Any, folder: str, hp: keras_tuner.HyperParameters) -> None:
    """Give an oracle a folder and a space, as a tuner does, and keep it quiet."""
    keras_tuner_private.set_project_folder(oracle, folder)
    oracle.verbose = 0
    oracle.update_space(hp)


def _active(trial: Any) -> list[Any]:
    """The hyperparameters of a trial whose conditions hold."""
    hp = trial.hyperparameters
    return [each for each in hp.space if hp.is_active(each)]


def _end(oracle: Any, trial: Any, score: float | None) -> None:
    """Tell an oracle the score of a trial, as a tuner does; `None` for one that it stopped."""
    with contextlib.redirect_stdout(io.StringIO()):
        if score is not None:
            oracle.update_trial(trial.trial_id, {OBJECTIVE: score}, step=0)
        trial.status = "STOPPED" if score is None else "COMPLETED"
        oracle.end_trial(trial)
