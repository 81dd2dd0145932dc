"""Oracle: which recipe KerasTuner tries next."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras_tuner

from kbatch.outcome import OUT_OF_MEMORY, SCORED, STOPPED
from kbatch.runtime import keras_tuner_private
from kbatch.search import proposals
from kbatch.search.proposals import Load, Observation, Proposer
from kbatch.search.rungs import Standing

ATTEMPTS = 30  # to propose what was not tried yet
# Recipes that reached the horizon before the leader is trained again; chosen on recorded tables
# (see docs/benchmarks.md).
REPEATED_FROM = 5
# Variations of the start before those left take turns with the model: the most that a recorded
# table has. Six lose more on that one (`scripts/bench_search.py`, `kbatch:at_once=6`).
AT_ONCE = 8
# The trial that has a second batch size at the latest. It is a variation too: recorded tables lose
# more where it takes the place of one (`scripts/bench_search.py`).
SECOND_SIZE = 4
# A start is beaten if a recipe scored so many times more: then that one is varied in its place. On
# six recorded tables 1.1 loses more from a good start, by chance (docs/benchmarks.md).
BEATEN = 1.5
BATCH_SIZE = "batch_size"  # the name of the axis that a search is about
REPEAT = "kbatch_repeat"  # the name of a repeat's value that holds the id of the first trial


class Oracle(keras_tuner.Oracle):
    """Proposes the start and its variations, then what a model says, and stops trials at a rung.

    A variation differs in one axis of two values, or of values without an order, such as the
    optimizer. The first of the start come in a row, the third at another batch size. Later those of
    the recipe that leads, and what is left of the start's, take turns with the model. A start that
    is not kbatch's default recipe is followed by that; one that is clearly beaten is not varied on.

    A recipe that leads after one training only is proposed again, as a repeat with another seed:
    the highest of many noisy scores flatters its recipe. Recipes are ranked by their mean scores.

    Attributes:
        most_trials: Integer, after so many trials no other is begun. `None` (the default) sets no
            limit besides `max_trials`, of which KerasTuner makes the names of trials.
        ends_at: Float, time on `time.monotonic` after which no trial is begun.
        margin: Float, by how much the gains of equal recipes may differ at the rung.
    """

    def __init__(self, start: Mapping[str, Any] | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.most_trials: int | None = None
        self.ends_at = self.margin = math.inf
        self._start, self._start_apart = dict(start or {}), False
        self._default: dict[str, Any] | None = None  # values of kbatch's default recipe
        self._learned: list[dict[str, Any]] = []  # values that were the best elsewhere
        self._begun: list[dict[str, Any]] = []  # those that were proposed, as they were
        self._known: Observation | None = None  # the start, if it is no trial
        self._earlier: list[Observation] = []
        self._gained: dict[str, float] = {}  # what each trial had gained at the rung
        self._ended: dict[str, str] = {}
        self._varied: list[dict[str, Any]] = []  # the variations that were proposed
        self._load: Callable[[Mapping[str, Any]], Load | None] = _unknown_load
        self._proposer = Proposer()
        self._axes: list[dict[str, Any]] = []  # the configs that `_actives` holds for
        # The values of each trial, and those of them that are active.
        self._actives: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._observed: dict[str, Observation] = {}  # of trials that have ended

    def begin_at(
        self,
        start: Mapping[str, Any],
        trained_apart: bool,
        load: Callable[[Mapping[str, Any]], Load | None] | None = None,
        default: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin at these values of the hyperparameters, and then at those of `default`."""
        self._start, self._start_apart = dict(start), trained_apart
        self._load = load or _unknown_load
        self._default = None if default is None else dict(default)

    def know_start(self, gained: float | None, score: float) -> None:
        """Take up what the start gave, if it was trained apart."""
        if self._start_apart:
            start = proposals.completed(self.hyperparameters.space, self._start)
            self._known = Observation(start, gained, score)

    def know_earlier(self, observations: Sequence[Observation]) -> None:
        """Take up what an earlier search of the same model has seen.

        Proposals follow it. The rung and the best trials do not, since other data may have been
        trained on.
        """
        self._earlier = list(observations)

    def learn(self, best: Sequence[Mapping[str, Any]]) -> None:
        """Take up values that were the best for other models, which are tried early.

        What they leave open is as in the start.
        """
        self._learned = [dict(values) for values in best]

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Return values for a new trial; KerasTuner calls this."""
        axes = [axis.get_config() for axis in self.hyperparameters.space]
        if axes != self._axes:
            self._axes, self._actives, self._observed = axes, {}, {}
        begun = len(self.start_order)
        values = None
        if begun < (self.most_trials or math.inf) and time.monotonic() < self.ends_at:
            values = self._first() or self._second() or self._next_learned() or self._repeat()
            values = values or self._second_size() or self._variation() or self._proposed()
        return {"status": "STOPPED" if values is None else "RUNNING", "values": values}

    def goes_on(self, trial_id: str, gained: float) -> bool:
        """Tell whether a trial is to go on after the rung, and keep what it had gained there."""
        self._gained[trial_id] = gained
        self._observed.pop(trial_id, None)
        return self.standing(trial_id)(gained)

    def standing(self, trial_id: str) -> Standing:
        """Return what the other trials gained by now, which tells whether this one goes on."""
        others = [gained for other, gained in self._gained.items() if other != trial_id]
        if self._known is not None and self._known.at_rung is not None:
            others.append(self._known.at_rung)
        # All others are compared with the start, and a repeat is asked for its score.
        is_start = not self._start_apart and trial_id == self.start_order[0]
        is_repeat = REPEAT in self.trials[trial_id].hyperparameters.values
        return Standing(tuple(others), is_start or is_repeat, self.margin)

    def keep(self, trial_id: str, gained: float | None, ended: str) -> None:
        """Keep how a trial went, which a record of an earlier process may tell.

        Args:
            trial_id: String, name of the trial.
            gained: Float, what it had gained at the rung; `None` if it did not reach it.
            ended: String, how it ended.
        """
        self._gained.pop(trial_id, None)
        if gained is not None:
            self._gained[trial_id] = gained
        self._ended[trial_id] = ended
        self._observed.pop(trial_id, None)

    def end_trial(self, trial: Any) -> None:
        """End a trial; KerasTuner calls this. One that was stopped at the rung gets no score."""
        if self._ended.get(trial.trial_id) == STOPPED:
            trial.status = "STOPPED"
        super().end_trial(trial)

    def get_best_trials(self, num_trials: int = 1) -> list[Any]:
        """Return the first trials of the best recipes that reached the horizon, best first."""
        return [trials[0] for trials in self._leaders()][:num_trials]

    def get_state(self) -> dict[str, Any]:
        """Return the state that KerasTuner stores."""
        own = {"gained": self._gained, "ended": self._ended, "varied": self._varied}
        own["learned"] = self._begun
        return {**super().get_state(), **own}

    def reload(self) -> None:
        """Take up the trials and the state of an earlier search; KerasTuner calls this."""
        with keras_tuner_private.axes_read_once():
            super().reload()

    def set_state(self, state: dict[str, Any]) -> None:
        """Take up a stored state."""
        super().set_state(state)
        self._observed = {}
        self._gained = dict(state["gained"]) if "gained" in state else _of_two_rungs(state["rungs"])
        self._ended = dict(state["ended"])
        self._varied = list(state["varied"])
        self._begun = list(state.get("learned", ()))  # projects of before have none

    def _first(self) -> dict[str, Any] | None:
        """The start, if it was not tried yet."""
        if self.start_order or self._start_apart:
            return None
        return proposals.completed(self.hyperparameters.space, self._start)

    def _second(self) -> dict[str, Any] | None:
        """kbatch's default recipe, if nothing but another start was tried."""
        if self._default is None or len(self.start_order) + self._start_apart > 1:
            return None
        values = proposals.completed(self.hyperparameters.space, self._default)
        known = self._is_tried(values) or self._is_earlier(values)
        return None if known or not self._may_fit(values) else values

    def _next_learned(self) -> dict[str, Any] | None:
        """What was the best elsewhere and was not tried here yet."""
        space = self.hyperparameters.space
        found = [proposals.completed(space, {**self._start, **each}) for each in self._learned]
        values = self._first_untried([each for each in found if each not in self._begun])
        if values is not None:
            self._begun.append(dict(values))  # the trial's own may be changed
        return values

    def _leaders(self) -> list[list[Any]]:
        """The trials of each recipe with a score, the highest mean score first."""
        recipes: dict[str, list[Any]] = {}
        for trial in self._in_order():
            first = trial.hyperparameters.values.get(REPEAT, trial.trial_id)
            recipes.setdefault(first, []).append(trial)
        found = [trials for trials in recipes.values() if trials[0].score is not None]
        return sorted(found, key=lambda trials: -_mean(trials))

    def _repeat(self) -> dict[str, Any] | None:
        """The values of the leader, if it leads by one training only."""
        leaders = [trials for trials in self._leaders() if self._is_sound(trials[0])]
        if len(leaders) < REPEATED_FROM or len(leaders[0]) > 1 or _mean(leaders[0]) <= 0:
            return None
        first = leaders[0][0]
        # what another trial's model declared since then has its default here
        return {**self._active(first), **first.hyperparameters.values, REPEAT: first.trial_id}

    def _second_size(self) -> dict[str, Any] | None:
        """The next variation, or the best of the first trials, at the next batch size.

        `None` unless all trials before the `SECOND_SIZE`th had one size.
        """
        if len(self.start_order) != SECOND_SIZE - 1:
            return None
        tried = [self._active(trial) for trial in self._in_order()]
        if len({each.get(BATCH_SIZE) for each in tried}) != 1:
            return None
        leaders = [trials[0] for trials in self._leaders() if self._is_sound(trials[0])]
        best = self._active(leaders[0]) if leaders else tried[0]
        for varied in filter(None, (self._variation(), best)):
            found = proposals.neighbours(self.hyperparameters.space, varied, BATCH_SIZE)
            values = self._untried(found)
            if values is not None:
                return values
        return None

    def _variation(self) -> dict[str, Any] | None:
        """An untried variation of the start, or of the leader."""
        space = self.hyperparameters.space
        for varied in self._varied_ones():
            values = self._untried(proposals.variations(space, varied))
            if values is not None:
                self._varied.append(dict(values))  # the trial's own may be changed
                return values
        return None

    def _untried(self, found: list[dict[str, Any]]) -> dict[str, Any] | None:
        """One of these values, in an order of the seed's, that was not tried and may fit."""
        random.Random(self.seed).shuffle(found)
        return self._first_untried(found)

    def _first_untried(self, found: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The first of these values that was not tried and may fit."""
        for values in found:
            known = values in self._varied or self._is_tried(values) or self._is_earlier(values)
            # the space may have been narrowed
            drawable = proposals.can_draw(self.hyperparameters.space, values)
            if drawable and not known and self._may_fit(values):
                return values
        return None

    def _varied_ones(self) -> list[dict[str, Any]]:
        """What is varied now: the start at first, then the leader too, at every second trial."""
        start = proposals.completed(self.hyperparameters.space, self._start)
        at_once = len(self._varied) < AT_ONCE
        sound = [trials for trials in self._leaders() if self._is_sound(trials[0])]
        is_beaten = bool(sound) and _mean(sound[0]) > BEATEN * self._score_of_start(start)
        repeats = sum(REPEAT in trial.hyperparameters.values for trial in self._in_order())
        if (len(self.start_order) - repeats) % 2 == 0:
            return [self._active(sound[0][0]) if is_beaten else start] if at_once else []
        if is_beaten:
            return [self._active(sound[0][0])]
        least = 0.0 if self._known is None else max(self._known.score or 0.0, 0.0)
        leader = [self._active(trials[0]) for trials in sound[:1] if _mean(trials) > least]
        return [start, *leader] if at_once else [*leader, start]

    def _score_of_start(self, start: dict[str, Any]) -> float:
        """The mean score of the start: 0 if it failed, without bound while it is unknown."""
        if self._known is not None:
            return max(self._known.score or 0.0, 0.0)
        if self._start_apart or self._in_order()[0].status == "RUNNING":
            return math.inf
        own = [_mean(each) for each in self._leaders() if self._active(each[0]) == start]
        return max([0.0, *own])

    def _is_sound(self, trial: Any) -> bool:
        """Whether a trial with a score did not fail."""
        return self._ended.get(trial.trial_id) in (None, *SCORED)

    def _proposed(self) -> dict[str, Any] | None:
        """What the model proposes and was not tried yet; `None` if nothing is left."""
        space = self.hyperparameters.space
        seen = [*self._earlier, *(self._observation(trial) for trial in self._in_order())]
        if self._known is not None:
            seen.insert(0, self._known)
        for attempt in range(ATTEMPTS):
            seed = self.seed * 10**6 + len(self.start_order) * ATTEMPTS + attempt
            values = self._proposer.propose(space, seen, seed % 2**32)
            if not self._is_tried(values) and self._may_fit(values):
                return values
        return self._random()

    def _random(self) -> dict[str, Any] | None:
        """Random values that were not tried and may fit into memory; `None` if none are found."""
        for _ in range(ATTEMPTS):
            values = self._random_values()
            if values is None or self._may_fit(values):
                return values  # type: ignore[no-any-return]
        return None

    def _may_fit(self, values: Mapping[str, Any]) -> bool:
        """Whether nothing is known of these values that says that they do not fit into memory."""
        load = self._load(values)
        failed = [name for name, ended in self._ended.items() if ended == OUT_OF_MEMORY]
        loads = [self._load(self._active(self.trials[name])) for name in failed]
        return load is not None and not any(load.is_above(each) for each in loads if each)

    def _is_tried(self, values: dict[str, Any]) -> bool:
        if self._start_apart:
            start = proposals.completed(self.hyperparameters.space, self._start)
            if values == start:
                return True
        return any(values == self._observation(trial).values for trial in self.trials.values())

    def _is_earlier(self, values: dict[str, Any]) -> bool:
        """Whether the model knows these values from an earlier search."""
        return any(values == each.values for each in self._earlier)

    def _in_order(self) -> list[Any]:
        return [self.trials[name] for name in self.start_order]

    def _observation(self, trial: Any) -> Observation:
        """What a trial has shown so far; that of one that has ended is kept."""
        runs = trial.status == "RUNNING"
        known = self._observed.get(trial.trial_id)
        if known is not None and not runs and known.score == trial.score:
            return known
        seen = Observation(
            self._active(trial),
            self._gained.get(trial.trial_id),
            trial.score,
            runs,
            self._ended.get(trial.trial_id) == OUT_OF_MEMORY,
        )
        if not runs:
            self._observed[trial.trial_id] = seen
        return seen

    def _active(self, trial: Any) -> dict[str, Any]:
        """The values of the active hyperparameters of a trial."""
        values = trial.hyperparameters.values
        known = self._actives.get(trial.trial_id)
        if known is None or known[0] != values:
            active = proposals.completed(self.hyperparameters.space, values)
            known = self._actives[trial.trial_id] = (dict(values), active)
        return dict(known[1])


def _mean(trials: Sequence[Any]) -> float:
    """The mean score of the trials of a recipe, of those that have ended."""
    return statistics.fmean(trial.score for trial in trials if trial.score is not None)


def _of_two_rungs(reached: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """What trials had gained at a third, of projects of before that had a rung at a ninth too."""
    return {name: values[1] for name, values in reached.items() if len(values) > 1}


def _unknown_load(values: Mapping[str, Any]) -> Load:
    """A load of no other kind, so that nothing is known of it."""
    return Load(object(), 1)
