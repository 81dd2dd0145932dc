"""Proposals: what to try next, by a model of what was seen."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import TrialState

from kbatch.search import axis_ranges


@dataclass(frozen=True)
class Observation:
    """The values of a trial, and what was measured of it.

    Attributes:
        values: Mapping from the name of each active hyperparameter to its value.
        rungs: Tuple of floats, what the trial had gained above chance at each rung that it reached.
        score: Float, its score at the horizon; `None` if it was stopped before, or still runs.
        running: Boolean, whether it still runs.
        out_of_memory: Boolean, whether it ran out of memory.
    """

    values: Mapping[str, Any]
    rungs: tuple[float, ...] = ()
    score: float | None = None
    running: bool = False
    out_of_memory: bool = False


@dataclass(frozen=True)
class Load:
    """What decides whether a trial fits into memory.

    Attributes:
        kind: All that decides it but the number of examples; equal for equal models and settings.
        examples: Integer, examples of a pass.
    """

    kind: Any
    examples: int

    def is_above(self, other: Load) -> bool:
        """Tell whether this takes no less memory than another load of the same kind."""
        return self.kind == other.kind and self.examples >= other.examples


# Before the estimator begins; Optuna's own default. Compared by hand with 3 and 5 on one table, and
# with 4 and 6 on another: a choice, not a finding.
RANDOM_TRIALS = 10


def propose(space: list[Any], observations: Sequence[Observation], seed: int) -> dict[str, Any]:
    """Return values for a new trial.

    The estimator is Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (2011), of all
    axes together, in groups that are active together (Falkner et al., 2018, by Optuna). It ranks
    a trial that was stopped below all that were not, and among the stopped by its last rung.
    Running out of memory breaks a constraint: the estimator keeps away from where that happened.

    Args:
        space: List of KerasTuner's hyperparameters, parents first.
        observations: Sequence of `Observation`, in the order in which the trials began.
        seed: Integer, seed of the draw.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed,
            multivariate=True,
            group=True,
            constant_liar=True,
            n_startup_trials=RANDOM_TRIALS,
        )
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.add_trials([_as_optuna(space, each) for each in observations])
        suggest = functools.partial(axis_ranges.suggested, study.ask())
        return axis_ranges.drawn(space, suggest)
    finally:
        optuna.logging.set_verbosity(level)


def _as_optuna(space: list[Any], observation: Observation) -> optuna.trial.FrozenTrial:
    known = {
        axis.name: axis_ranges.parameter(axis, observation.values[axis.name])
        for axis in space
        if axis.name in observation.values and not axis_ranges.is_fixed(axis)
    }
    state = TrialState.PRUNED if observation.score is None else TrialState.COMPLETE
    if observation.running:
        state = TrialState.RUNNING
    return optuna.trial.create_trial(
        state=state,
        value=observation.score,
        params={name: value for name, (value, _) in known.items()},
        distributions={name: distribution for name, (_, distribution) in known.items()},
        intermediate_values=dict(enumerate(observation.rungs)),
        constraints={"memory": float(observation.out_of_memory)},
    )
