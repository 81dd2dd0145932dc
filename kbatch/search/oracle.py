"""The oracle of kbatch's search: KerasTuner asks it for trials, and whether each is to go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras_tuner
import numpy as np

from kbatch.search import axis_ranges, choice, rungs
from kbatch.search.observation import Observation
from kbatch.search.proposals import propose

NEIGHBOURS = 3  # of the start, before the model is asked; chosen by hand, not tuned
ATTEMPTS = 30  # to propose what was not tried yet


class Oracle(keras_tuner.Oracle):
    """Proposes recipes near the start first, then by a model, and stops trials at rungs.

    Args:
        start: Dict, values of the hyperparameters to begin with, such as those of the baseline;
            those that are missing take their defaults. Optional.
        **arguments: Arguments of `keras_tuner.Oracle`, such as `objective`, `max_trials` and
            `seed`.
    """

    def __init__(self, start: Mapping[str, Any] | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.start = dict(start or {})
        self._rungs: dict[str, list[float]] = {}

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Return values for a new trial; KerasTuner calls this."""
        values = self._first() or self._proposed()
        if values is None:
            return {"status": "STOPPED", "values": None}
        return {"status": "RUNNING", "values": values}

    def goes_on(self, trial_id: str, rung: int, value: float) -> bool:
        """Tell whether a trial is to go on after a rung, and keep what it held there.

        Args:
            trial_id: String, KerasTuner's name of the trial.
            rung: Integer, which of the rungs, from 0.
            value: Float, what it holds above chance.
        """
        others = [
            reached[rung]
            for other, reached in self._rungs.items()
            if other != trial_id and len(reached) > rung
        ]
        self._rungs[trial_id] = [*self._rungs.get(trial_id, [])[:rung], value]
        # The trial that the search starts from is what all others are compared with.
        return trial_id == self.start_order[0] or rungs.goes_on(value, others)

    def get_best_trials(self, num_trials: int = 1) -> list[Any]:
        """Return the best trials of those that reached the horizon, by their estimates.

        Args:
            num_trials: Integer, how many at most. Defaults to `1`.
        """
        finished = [trial for trial in self._in_order() if trial.score is not None]
        known = [self._observation(trial) for trial in finished]
        order = choice.ranking(self.get_space().space, known)
        return [finished[place] for place in order[:num_trials]]

    def get_state(self) -> dict[str, Any]:
        """Return the state that KerasTuner stores."""
        return {**super().get_state(), "rungs": self._rungs}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take up a stored state."""
        super().set_state(state)
        self._rungs = {name: list(values) for name, values in state["rungs"].items()}

    def _first(self) -> dict[str, Any] | None:
        """The start and its neighbours, as far as they were not tried yet."""
        space = self.get_space().space
        begun = len(self.start_order)
        start = axis_ranges.completed(space, self.start)
        if not begun:
            return start
        near = list(axis_ranges.neighbours(space, start))
        order = np.random.default_rng(self.seed).permutation(len(near))[:NEIGHBOURS]
        return next((near[at] for at in order if not self._is_tried(near[at])), None)

    def _proposed(self) -> dict[str, Any] | None:
        """What the model proposes and was not tried yet; `None` if nothing is left."""
        space = self.get_space().space
        observations = [self._observation(trial) for trial in self._in_order()]
        for attempt in range(ATTEMPTS):
            seed = self.seed * 10**6 + len(observations) * ATTEMPTS + attempt
            values = propose(space, observations, seed % 2**32)
            if not self._is_tried(values):
                return values
        return self._random_values()  # type: ignore[no-any-return]

    def _is_tried(self, values: dict[str, Any]) -> bool:
        tried = (self._active(trial) for trial in self.trials.values())
        return values in tried

    def _in_order(self) -> list[Any]:
        return [self.trials[name] for name in self.start_order]

    def _observation(self, trial: Any) -> Observation:
        return Observation(
            self._active(trial),
            tuple(self._rungs.get(trial.trial_id, ())),
            trial.score,
            trial.status == "RUNNING",
        )

    def _active(self, trial: Any) -> dict[str, Any]:
        """The values of the active hyperparameters of a trial."""
        return axis_ranges.completed(self.get_space().space, trial.hyperparameters.values)
