"""Proposals: recipes to try next, and the values that each axis can take."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras_tuner
import optuna
from keras_tuner.engine import hyperparameters as kinds
from optuna import distributions
from optuna.trial import TrialState

Hyperparameter = Any  # keras_tuner's base class has no public name
HIGHEST = 1 - 1e-9  # of a place in a range; KerasTuner finds no value at 1


def is_fixed(axis: Hyperparameter) -> bool:
    """Tell whether a hyperparameter has one value only."""
    return not _is_range(axis) and len(_choices(axis)) == 1


def drawn(space: list[Hyperparameter], draw: Callable[[Hyperparameter], Any]) -> dict[str, Any]:
    """Return values for all active hyperparameters, in the order of their declaration."""
    hp = keras_tuner.HyperParameters()
    values = {}
    for axis in space:
        if hp.is_active(axis):
            hp.values[axis.name] = values[axis.name] = (
                axis.default if is_fixed(axis) else draw(axis)
            )
    return values


def suggested(trial: Any, axis: Hyperparameter) -> Any:
    """Return the value that a trial of Optuna suggests for a hyperparameter."""
    if _is_range(axis):
        return axis.prob_to_value(trial.suggest_float(axis.name, 0.0, HIGHEST))
    choices = _choices(axis)
    if _is_ordered(axis):
        return choices[trial.suggest_int(axis.name, 0, len(choices) - 1)]
    return choices[trial.suggest_categorical(axis.name, list(range(len(choices))))]


def parameter(axis: Hyperparameter, value: Any) -> tuple[Any, Any]:
    """Return a value as Optuna keeps it, and its distribution."""
    if _is_range(axis):
        return _place(axis, value), distributions.FloatDistribution(0.0, HIGHEST)
    choices = _choices(axis)
    if _is_ordered(axis):
        return choices.index(value), distributions.IntDistribution(0, len(choices) - 1)
    every = list(range(len(choices)))
    return choices.index(value), distributions.CategoricalDistribution(every)


def check(axis: Hyperparameter) -> None:
    """Raise an error of any kind for a hyperparameter, read from a file, that cannot be drawn."""
    if not isinstance(axis.name, str):
        raise TypeError(axis.name)
    for value in (axis.default, axis.random_sample(0)):
        if not takes(axis, value):
            raise ValueError(value)
        parameter(axis, value)


def check_values(hp: Any) -> None:
    """Raise an error for hyperparameters, read from a file, with a value that none can have."""
    for name in {axis.name for axis in hp.space} & hp.values.keys():
        # of one name there may be several, each under a condition of its own
        if not any(takes(axis, hp.values[name]) for axis in hp.space if axis.name == name):
            raise ValueError(name, hp.values[name])


def can_draw(space: list[Hyperparameter], values: Mapping[str, Any]) -> bool:
    """Tell whether a space can draw these values, with one for each active hyperparameter."""
    by_name = {axis.name: axis for axis in space}
    active = completed(space, values)
    return all(
        is_fixed(by_name[name]) or (name in values and takes(by_name[name], values[name]))
        for name in active
    )


def takes(axis: Hyperparameter, value: Any) -> bool:
    """Tell whether a value is one that a hyperparameter can have."""
    if not _is_range(axis):
        return value in _choices(axis)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and axis.min_value <= value <= axis.max_value


def completed(space: list[Hyperparameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of the active hyperparameters, by default where none is given."""
    return drawn(space, lambda axis: values.get(axis.name, axis.default))


def variations(space: list[Hyperparameter], values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the values that differ in one axis whose values have no order.

    An axis of two values has none either. What depends on the axis takes its default.
    """
    names = [each.name for each in space if not _is_range(each) and _has_no_order(each)]
    return [found for name in dict.fromkeys(names) for found in others(space, values, name)]


def others(
    space: list[Hyperparameter], values: Mapping[str, Any], name: str
) -> list[dict[str, Any]]:
    """Return the values that differ in one axis; none if it is not active, or a range."""
    active = completed(space, values)
    return [
        completed(space, {**active, name: other})
        for axis in space
        if axis.name == name and name in active and not _is_range(axis)
        for other in _choices(axis)
        if other != active[name]
    ]


def neighbours(
    space: list[Hyperparameter], values: Mapping[str, Any], name: str
) -> list[dict[str, Any]]:
    """Return the values that differ in one axis of numbers, by the next larger or smaller one."""
    found = sorted(others(space, values, name), key=lambda each: each[name])
    larger = [each for each in found if each[name] > values[name]]
    smaller = [each for each in found if each[name] < values[name]]
    return [*larger[:1], *smaller[-1:]]


def distance(
    space: list[Hyperparameter], one: Mapping[str, Any], other: Mapping[str, Any]
) -> float:
    """Return how far two sets of values are apart, in ranges of their axes."""
    total = 0.0
    for axis in space:
        # where one of both is inactive, the axis that it depends on differs, and counts
        if axis.name in one and axis.name in other:
            total += _apart(axis, one[axis.name], other[axis.name]) ** 2
    return math.sqrt(total)


def _apart(axis: Hyperparameter, one: Any, other: Any) -> float:
    if one == other:
        return 0.0
    if _is_range(axis):
        return abs(_place(axis, one) - _place(axis, other))
    if not _is_ordered(axis):
        return 1.0
    choices = _choices(axis)
    return abs(choices.index(one) - choices.index(other)) / (len(choices) - 1)


def _is_range(axis: Hyperparameter) -> bool:
    return isinstance(axis, (kinds.Float, kinds.Int))


def _is_ordered(axis: Hyperparameter) -> bool:
    return bool(getattr(axis, "ordered", False))


def _has_no_order(axis: Hyperparameter) -> bool:
    return not _is_ordered(axis) or len(_choices(axis)) == 2


def _choices(axis: Hyperparameter) -> list[Any]:
    """The values of a hyperparameter that is no range."""
    return list(axis.values)


def _place(axis: Hyperparameter, value: Any) -> float:
    """Where a value is in its range, on the scale that it is drawn on, from 0 to below 1."""
    return min(max(float(axis.value_to_prob(value)), 0.0), HIGHEST)


@dataclass(frozen=True)
class Observation:
    """The values of a trial, and what was measured of it."""

    values: Mapping[str, Any]
    at_rung: float | None = None  # what the trial had gained at the rung; `None` before it
    # its score at the horizon; `None` if it was stopped before, or still runs
    score: float | None = None
    running: bool = False  # whether it still runs
    out_of_memory: bool = False  # whether it ran out of memory


@dataclass(frozen=True)
class Load:
    """What decides whether a trial fits into memory."""

    kind: Any  # all that decides it but the number of examples; equal for equal models and settings
    examples: int  # examples of a pass

    def is_above(self, other: Load) -> bool:
        """Tell whether this takes no less memory than another load of the same kind."""
        return self.kind == other.kind and self.examples >= other.examples


# Before the estimator begins; Optuna's own default. Compared by hand with 3 and 5 on one table, and
# with 4 and 6 on another: a choice, not a finding.
RANDOM_TRIALS = 10
# The estimator's time grows with the observations. It tells this many of the best from all others,
# of which it weighs the latest most (Optuna's own defaults).
BEST_READ = 25
MOST_READ = 1500


class Proposer:
    """Proposes values for new trials from what was observed.

    The estimator is Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (2011), of all
    axes together, in groups that are active together (Falkner et al., 2018, by Optuna). It ranks
    a trial that was stopped below all that were not, and among the stopped by what it had gained.
    Running out of memory breaks a constraint: the estimator keeps away from where that happened.

    Proposals depend on nothing but the arguments. What was read of an observation is kept, since of
    thousands only the last are new.
    """

    def __init__(self) -> None:
        self._space: list[dict[str, Any]] = []  # the configs of the axes that trials were read by
        self._read: list[tuple[Observation, optuna.trial.FrozenTrial]] = []

    def propose(
        self, space: list[Any], observations: Sequence[Observation], seed: int
    ) -> dict[str, Any]:
        """Return values for a new trial.

        Args:
            space: List of KerasTuner's hyperparameters, parents first.
            observations: Sequence of `Observation`, in the order in which the trials began.
            seed: Integer, seed of the draw.
        """
        sampler = self._sampler(observations, seed)
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            storage = _Storage(_told(self._trials(space, observations), observations))
            study = optuna.create_study(direction="maximize", sampler=sampler, storage=storage)
            suggest = functools.partial(suggested, study.ask())
            return drawn(space, suggest)
        finally:
            optuna.logging.set_verbosity(level)

    def _sampler(
        self, observations: Sequence[Observation], seed: int
    ) -> optuna.samplers.BaseSampler:
        """The estimator, as Optuna has it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(
                seed=seed,
                multivariate=True,
                group=True,
                constant_liar=True,
                n_startup_trials=RANDOM_TRIALS,
            )

    def _trials(
        self, space: list[Any], observations: Sequence[Observation]
    ) -> list[optuna.trial.FrozenTrial]:
        """The observations as Optuna's trials, of which those that are known are not made anew."""
        configs = [axis.get_config() for axis in space]
        if configs != self._space:
            self._space, self._read = configs, []
        for number, each in enumerate(observations):
            known = self._read[number][0] if number < len(self._read) else None
            if known is not each and known != each:
                self._read[number : number + 1] = [(each, _as_optuna(space, each))]
        del self._read[len(observations) :]
        trials = [trial for _, trial in self._read]
        for number, trial in enumerate(trials, 1):
            trial.number = number
        return trials


def _told(
    trials: list[optuna.trial.FrozenTrial], observations: Sequence[Observation]
) -> list[optuna.trial.FrozenTrial]:
    """The trials that the estimator reads: all, or the best and the latest of thousands."""
    latest = len(trials) - MOST_READ
    if latest <= 0:
        return trials
    ranked = sorted(range(len(trials)), key=lambda number: _rank(observations[number]))
    best = set(ranked[-BEST_READ:])
    return [trial for number, trial in enumerate(trials) if number >= latest or number in best]


def _rank(observation: Observation) -> tuple[Any, ...]:
    """What the estimator orders observations by, the best last."""
    score, at_rung = observation.score, observation.at_rung
    measured = at_rung if score is None else score
    reached = -math.inf if measured is None else measured
    return not observation.out_of_memory, score is not None, reached


class _Storage(optuna.storages.InMemoryStorage):
    """A study's trials beside others that have ended or run elsewhere, which are not copied.

    The trial that is asked for is number 0.
    """

    def __init__(self, others: list[optuna.trial.FrozenTrial]) -> None:
        super().__init__()
        self._others = others

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[optuna.trial.FrozenTrial]:
        """Return all trials of these states; Optuna's samplers call this."""
        own = super().get_all_trials(study_id, deepcopy, states)
        return [each for each in self._others if states is None or each.state in states] + own


def _as_optuna(space: list[Any], observation: Observation) -> optuna.trial.FrozenTrial:
    known = {
        axis.name: parameter(axis, observation.values[axis.name])
        for axis in space
        if axis.name in observation.values and not is_fixed(axis)
    }
    at_rung = observation.at_rung
    state = TrialState.PRUNED if observation.score is None else TrialState.COMPLETE
    if observation.running:
        state = TrialState.RUNNING
    return optuna.trial.create_trial(
        state=state,
        value=observation.score,
        params={name: value for name, (value, _) in known.items()},
        distributions={name: distribution for name, (_, distribution) in known.items()},
        intermediate_values={} if at_rung is None else {0: at_rung},
        constraints={"memory": float(observation.out_of_memory)},
    )
