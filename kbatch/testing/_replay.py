"""Replay: a search over a table of trainings, on a clock that is moved by hand."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras_tuner
import numpy as np

from kbatch import outcome
from kbatch.errors import SearchError
from kbatch.recipe import Recipe
from kbatch.results.interval import widest_difference
from kbatch.runtime import keras_tuner_private
from kbatch.search.oracle import REPEAT, Oracle
from kbatch.search.rungs import RUNG_MARK
from kbatch.search.tuner_border import OBJECTIVE
from kbatch.testing import _table
from kbatch.testing._table import RecipePoints, RecordedTraining

__all__ = ["FakeTime"]


class FakeTime:
    """A clock that moves only when a test tells it to.

    Pass it to `TrainingClock(now=…)` and `Horizon(now=…)`, so that a test of callbacks need not
    wait.

    Args:
        seconds: Float, the time at first. Defaults to `0.0`.

    Example:
    >>> now = FakeTime()
    >>> now.sleep(2.5)
    >>> now()
    2.5
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Move the clock forward.

        Args:
            seconds: Float, seconds to pass.
        """
        self.seconds += seconds


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


class TrainingTable(Protocol):
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
    """Answers the trials of an oracle with the trainings of a table."""

    def __init__(
        self, table: TrainingTable, oracle: keras_tuner.Oracle, seeds: Sequence[int]
    ) -> None:
        self._table, self._oracle, self._seeds = table, oracle, seeds
        self._untried = set(range(len(table.recipes)))
        self._given: dict[str, Recipe] = {}

    def trials(self, horizons: float) -> list[Replayed]:
        """Answer trials until the next may be too long, or no recipe is left."""
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

    def _seconds(self, trial: Any, training: RecordedTraining) -> float:
        """The seconds after which the oracle stops a training; the horizon if it does not."""
        if isinstance(self._oracle, Oracle):
            rung = outcome.marks(self._table.horizon)[RUNG_MARK - 1]
            gained = self._table.gain(training, rung)
            if not self._oracle.goes_on(trial.trial_id, gained):
                return rung
        return self._table.horizon

    def _end(self, trial: Any, training: RecordedTraining, stopped: bool) -> None:
        """Tell the oracle how a trial went, as a tuner does."""
        with contextlib.redirect_stdout(io.StringIO()):
            if not stopped:
                score = self._table.held(training) / self._table.horizon
                self._oracle.update_trial(trial.trial_id, {OBJECTIVE: score}, step=0)
            trial.status = "STOPPED" if stopped else "COMPLETED"
            self._oracle.end_trial(trial)


OracleFactory = Callable[..., keras_tuner.Oracle]
STOCK: dict[str, OracleFactory] = {
    "random": keras_tuner.oracles.RandomSearchOracle,
    "bayesian": keras_tuner.oracles.BayesianOptimizationOracle,
}


class Replay:
    """Recorded trainings of many recipes, given again to a way of search.

    Use it to compare tuners without training: each recipe was trained once with each of some seeds,
    and a replayed trial is answered with one of these trainings. The trials of one search all have
    one seed, as those of a real one. A tuner that draws other values is given the nearest recipe
    that it has not been given yet, and the search ends with the last one.

    Args:
        trainings: Sequence of `RecordedTraining`, of one horizon. Every recipe should have the same
            number of seeds.
        noise: Float, share of what differs between the seeds of a recipe: `0.25` moves each
            training to a quarter of its distance from the mean of its recipe. Defaults to `1.0`.

    Attributes:
        recipes: Tuple of the `Recipe`s of the table.
        of: Dict from each recipe to its trainings.
        points: `RecipePoints`, the recipes as hyperparameters.
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
        self.of: dict[Recipe, list[RecordedTraining]] = {}
        for each in self.trainings:
            self.of.setdefault(each.recipe, []).append(each)
        self.recipes = tuple(self.of)
        horizons = sorted({each.horizon for each in self.trainings})
        if len(horizons) != 1:
            raise SearchError(
                "The trainings of a table must have one horizon",
                ", ".join(f"{each:g} s" for each in horizons) or "no training",
                "Make a table for each",
            )
        self.horizon = horizons[0]
        self.points = RecipePoints(self.recipes)
        self._means = {
            recipe: float(np.mean([each.held(self.horizon) for each in own]))
            for recipe, own in self.of.items()
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
                `peak_bytes` and `validation_examples`.
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

    def held(self, training: RecordedTraining) -> float:
        """Return the value above chance that a training held, with this replay's noise.

        Args:
            training: `RecordedTraining` of the table.
        """
        return self._moved(training, lambda each: each.held(self.horizon))

    def gain(self, training: RecordedTraining, seconds: float) -> float:
        """Return what a training had gained above chance, with this replay's noise.

        Args:
            training: `RecordedTraining` of the table.
            seconds: Float, training seconds after which it is stopped.
        """
        return self._moved(training, lambda each: each.gain(seconds))

    def _moved(
        self, training: RecordedTraining, measure: Callable[[RecordedTraining], float]
    ) -> float:
        """What is measured of a training, moved towards the mean of its recipe."""
        mean = float(np.mean([measure(each) for each in self.of[training.recipe]]))
        return mean + self.noise * (measure(training) - mean)

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
        if isinstance(oracle, Oracle):
            examples = self.trainings[0].validation_examples or 0
            oracle.margin = widest_difference("accuracy", examples)
        hp = keras_tuner.HyperParameters()
        self.points.declare(hp)
        seeds = random.permutation(max(map(len, self.of.values()))).tolist()
        with tempfile.TemporaryDirectory(prefix="kbatch-replay-") as folder:
            _settle(oracle, folder, hp)
            return ReplayedSearch(self, oracle, seeds).trials(horizons)

    def _factory(self, policy: Any) -> OracleFactory:
        if callable(policy):
            return policy  # type: ignore[no-any-return]
        if policy == "kbatch":
            return functools.partial(Oracle, start=self.points.values(self.recipes[0]))
        if policy not in STOCK:
            raise SearchError(
                "`policy` must be the name of one, or a function that makes an oracle",
                policy,
                f"Pass one of kbatch, {', '.join(STOCK)}, or the class of an oracle",
            )
        return STOCK[policy]


def _settle(oracle: Any, folder: str, hp: keras_tuner.HyperParameters) -> None:
    """Give an oracle a folder and a space, as a tuner does, and keep it quiet."""
    keras_tuner_private.set_project_folder(oracle, folder)
    oracle.verbose = 0
    oracle.update_space(hp)
