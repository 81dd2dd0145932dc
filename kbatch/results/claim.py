"""The claim of a confirmation: the best recipe against the baseline, with its uncertainty."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special

from kbatch import outcome as outcomes
from kbatch.outcome import Goal, Outcome
from kbatch.records.store import PARTED, Record
from kbatch.results.words import apart, words_of


def is_share(metric: str) -> bool:
    """Whether a metric is the share of examples that are right.

    The standard error of a share follows from the number of examples.

    >>> is_share("val_binary_accuracy"), is_share("val_acc"), is_share("val_auc")
    (True, True, False)
    """
    return "accuracy" in metric or metric.split("_")[-1] == "acc"


def value_error(value: float | None, metric: str, examples: int) -> float | None:
    """Return the standard error of a value measured on some examples; `None` if unknown."""
    if value is None or not is_share(metric) or not 0 <= value <= 1 or examples < 1:
        return None
    return outcomes.standard_error(value, examples)


def widest_difference(metric: str, examples: int) -> float:
    """Return the difference of two measurements of equal models that chance seldom exceeds.

    Two standard errors of a difference, where the share is a half; infinity if unknown.

    >>> round(widest_difference("val_accuracy", 400), 3), widest_difference("val_loss", 400)
    (0.071, inf)
    """
    error = value_error(0.5, metric, examples)
    return math.inf if error is None else 2 * math.sqrt(2) * error


def score_error(outcome: Outcome, goal: Goal, examples: int) -> float | None:
    """Return the standard error of one training's score; `None` if unknown.

    Without a target it is the value's error per second of the horizon. With a target that was
    reached, the score is a time, which has two errors: the distance of two measurements, and the
    time by which a value one standard error lower is reached sooner.
    """
    value, target = value_error(outcome.value, goal.metric, examples), goal.target
    reached = None if target is None else outcomes.seconds_to(outcome.curve, target, goal.direction)
    if not reached or target is None:
        return None if value is None else value / goal.seconds
    before = max((seconds for seconds, _ in outcome.curve if seconds < reached), default=0.0)
    sign = 1 if goal.direction == "max" else -1
    sooner = (
        outcomes.seconds_to(outcome.curve, target - sign * (value or 0.0), goal.direction)
        or reached
    )
    # The time is uniformly distributed between two measurements: its standard deviation is their
    # distance over the root of 12.
    seconds = math.hypot((reached - before) / math.sqrt(12), reached - sooner)
    return abs(target - goal.chance) / reached * seconds / reached


# The spread of two seeds has one degree of freedom: the interval would be 13 standard errors wide.
FEWEST_SEEDS = 3
FALSE_CLAIMS = 0.05
# The share of the binomial variance p (1 - p) / n that recipe and examples cause together. Further
# seeds do not reduce it, since they are measured on the same examples. Measured: 5 % (three
# recipes, eight seeds each, 2,000 drawn pets; 54 % is the seed's).
SAME_EXAMPLES = 0.05


def interval(first: Any, second: Any, first_error: Any, second_error: Any, recipes: int) -> Any:
    """Return half of the 95 % interval around the difference of two mean scores.

    Returns a float, or an array of them; `nan` if there are fewer than three seeds.
    """
    sides = [
        (np.asarray(first), np.square(first_error)),
        (np.asarray(second), np.square(second_error)),
    ]
    if min(scores.shape[-1] for scores, _ in sides) < FEWEST_SEEDS:
        return math.nan
    # Few seeds may agree by luck, but not better than they were measured.
    spreads = [
        np.maximum(scores.var(axis=-1, ddof=1), measured) / scores.shape[-1]
        for scores, measured in sides
    ]
    variance = sum(spreads) + SAME_EXAMPLES * sum(measured for _, measured in sides)
    unsure = sum(
        spread**2 / (scores.shape[-1] - 1)
        for spread, (scores, _) in zip(spreads, sides, strict=True)
    )
    # Rounded down: with three seeds, and recipes of very unequal spread, Welch's own number lets
    # 6 % of false claims pass.
    freedom = np.floor(np.square(variance) / np.maximum(unsure, np.finfo(float).tiny))
    return special.stdtrit(freedom, 1 - FALSE_CLAIMS / (2 * recipes)) * np.sqrt(variance)


def measuring_error(records: Sequence[Record], goal: Goal, examples: int) -> float:
    """The standard error of measuring one score, averaged over a recipe's trainings."""
    errors = [score_error(record.outcome, goal, examples) or 0.0 for record in records]
    return math.sqrt(statistics.fmean(error**2 for error in errors))


def confirmed(records: Sequence[Record]) -> dict[tuple[int, str], list[Record]]:
    """Return the trainings of a confirmation by trial and recipe, the baseline's among them.

    One that is stopped may have a seed of a recipe, but not yet of the baseline: it is left out.
    """
    fresh = [record for record in records if record.purpose == "confirmation"]
    seeds = {record.seed for record in fresh if record.baseline}
    groups: dict[tuple[int, str], list[Record]] = {}
    for record in fresh:
        if record.seed in seeds:
            groups.setdefault((record.trial, str(record.recipe)), []).append(record)
    return groups


def best_first(groups: Sequence[list[Record]], dropped: Sequence[int] = ()) -> list[list[Record]]:
    """Return the trainings of recipes by their mean scores, those that left a race behind."""
    return sorted(
        groups,
        key=lambda group: (
            group[0].trial in dropped,
            -statistics.fmean(record.score for record in group),
        ),
    )


def parted(records: Sequence[Record], best: Sequence[Record]) -> list[Record]:
    """Return the trainings of a confirmed recipe with the baseline's own hyperparameters."""
    key, seeds = (best[0].trial, best[0].recipe), {record.seed for record in best}
    own = [record for record in records if record.purpose == PARTED and record.seed in seeds]
    return [record for record in own if (record.trial, record.recipe) == key]


def confirmed_best(records: Sequence[Record], dropped: Sequence[int] = ()) -> list[Record]:
    """Return the trainings with fresh seeds of the best confirmed recipe; empty if there is none.

    A trial in `dropped` left a race, and is not the best.
    """
    groups = [group for group in confirmed(records).values() if not group[0].baseline]
    return next(iter(best_first(groups, dropped)), [])


SAME_PACE = 1.05  # times by which seconds differ that read alike with one decimal


@dataclass(frozen=True)
class Race:
    """How a confirmation gave its seeds."""

    looks: tuple[int, ...] = ()  # numbers of seeds at which the recipes could be compared
    dropped: tuple[int, ...] = ()  # the trials whose recipes dropped out

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Race:
        """Return how the confirmations of a project with these facts gave their seeds."""
        return cls(tuple(facts.get("looks", ())), tuple(facts.get("dropped", ())))

    @property
    def claims(self) -> int:
        """Integer, how many chances there were to claim something of a recipe."""
        return max(sum(look >= FEWEST_SEEDS for look in self.looks), 1)


NO_RACE = Race()


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, its standard error (`nan` for one seed) and the values of the seeds."""

    mean: float
    error: float
    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Return the mean of values and its standard error."""
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return cls(statistics.fmean(values), error, tuple(values))


@dataclass(frozen=True)
class Side:
    """One recipe, trained with several seeds."""

    trial: int  # -1 for the baseline
    recipe: str  # in words
    seeds: int
    score: Mean  # per second
    value: Mean  # the metric held at the horizon
    test: Mean | None  # the same metric on test data
    # To the target, or without one to the baseline's final value. A training that did not reach it
    # counts with the whole horizon.
    seconds_to_goal: float
    missed: int  # trainings that did not reach it
    own: Mapping[str, Any] = field(default_factory=dict)  # in which the claim's sides differ

    @property
    def words(self) -> str:
        """The recipe in words, with the own hyperparameters that differ."""
        return ", ".join(filter(None, (self.recipe, words_of(self.own))))


@dataclass(frozen=True)
class Part:
    """What a gain owes to the recipe alone: it was trained with the baseline's own values.

    It is claimed only where the whole gain is, so that its interval needs no further allowance (a
    fixed sequence of tests).
    """

    side: Side
    difference: float  # their mean score less the baseline's
    half_width: float  # of the 95 % interval around it; `nan` if there are too few seeds

    @property
    def is_sure(self) -> bool:
        """Whether the interval is above 0."""
        return self.difference > self.half_width


@dataclass(frozen=True)
class Claim:
    """The baseline against the best confirmed recipe."""

    baseline: Side
    best: Side  # the recipe with the highest mean score among those confirmed
    others: tuple[Side, ...]  # best first
    difference: float  # the best recipe's mean score less the baseline's
    half_width: float  # of the 95 % interval around it; `nan` if there are too few seeds
    own_run: float | None  # the score of the search's own training of the baseline
    race: Race = NO_RACE
    obstacles: tuple[str, ...] = ()  # sentences on assumptions that do not hold
    part: Part | None = None  # of the recipe, where own hyperparameters differ too
    lowest: Mapping[str, Any] = field(default_factory=dict)  # the baseline's, that nobody chose

    @property
    def contradicted(self) -> bool:
        """Whether the search's own run of the baseline contradicts the fresh ones.

        It does if it is on the other side of the best recipe's mean score.
        """
        return (
            self.own_run is not None
            and self.difference != 0
            and (self.best.score.mean - self.own_run) * self.difference <= 0
        )

    @property
    def verdict(self) -> str:
        """The verdict on the best recipe against the baseline.

        `"better"`, `"worse"`, `"noise"`, `"contradicted"`, `"unsound"` where an assumption does
        not hold, or `"few seeds"`.
        """
        if math.isnan(self.half_width):
            return "few seeds"
        if self.obstacles:
            return "unsound"
        if not abs(self.difference) > self.half_width:
            return "noise"
        if self.contradicted:
            return "contradicted"
        return "better" if self.difference > 0 else "worse"

    @property
    def speed_up(self) -> float:
        """How many times sooner the best recipe reaches its aim; 0 if most of its runs miss it."""
        if 2 * self.best.missed > self.best.seeds:
            return 0.0
        return self.baseline.seconds_to_goal / self.best.seconds_to_goal

    @property
    def pace(self) -> str:
        """How much sooner or later the best recipe reaches its aim, in words; empty if unknown."""
        if not self.speed_up:
            return ""
        if self.speed_up >= SAME_PACE:
            return f"{self.speed_up:.1f} times sooner"
        if self.speed_up <= 1 / SAME_PACE:
            return f"{1 / self.speed_up:.1f} times later"
        return "as soon"


def claim_of(
    records: Sequence[Record],
    goal: Goal,
    examples: int,
    race: Race = NO_RACE,
    obstacles: Sequence[str] = (),
    lowest: Mapping[str, Any] | None = None,
) -> Claim | None:
    """Return the claim on the best confirmed recipe.

    It is `None` if the baseline, or every other recipe, was not confirmed.

    The interval is Welch's (The generalization of "Student's" problem, 1947), for recipes of
    unequal spread. Its level is divided by the number of recipes (Bonferroni), since the best of
    them is chosen by the same runs, and by the number of looks, since a race ends at the first that
    shows a difference. A recipe that dropped out of a race is not the best. Pairing by seed would
    halve the degrees of freedom and gain little: one seed gives two recipes two different
    trainings. A claim must also hold against the search's own run of the baseline, which nobody
    chose.
    """
    groups = list(confirmed(records).values())
    own = [group for group in groups if group[0].baseline]
    rest = [group for group in groups if not group[0].baseline]
    if not own or not rest:
        return None
    aim = goal.target
    if aim is None:
        aim = statistics.fmean(_values(own[0], goal.chance))
    rest = best_first(rest, race.dropped)
    ours, theirs = apart(own[0][0], rest[0][0])
    baseline = dataclasses.replace(_baseline(own[0], aim, goal), own=ours)
    sides = [_side(group, aim, goal) for group in rest]
    claims = len(rest) * race.claims
    recipe = parted(records, rest[0]) if ours or theirs else []
    part = None
    if recipe:
        side = dataclasses.replace(_side(recipe, aim, goal), own=ours)
        half = _half_width(own[0], recipe, goal, examples, claims)
        part = Part(side, side.score.mean - baseline.score.mean, half)
    return Claim(
        baseline,
        dataclasses.replace(sides[0], own=theirs),
        tuple(sides[1:]),
        sides[0].score.mean - baseline.score.mean,
        _half_width(own[0], rest[0], goal, examples, claims),
        next((record.score for record in records if record.purpose == "baseline"), None),
        race,
        tuple(obstacles),
        part,
        dict(lowest or {}),
    )


def _half_width(
    one: Sequence[Record], other: Sequence[Record], goal: Goal, examples: int, claims: int
) -> float:
    """Half of the interval around the difference of the mean scores of two recipes."""
    first, second = (measuring_error(each, goal, examples) for each in (one, other))
    return float(interval(_scores(one), _scores(other), first, second, claims))


def _scores(records: Sequence[Record]) -> list[float]:
    return [record.score for record in records]


def _values(records: Sequence[Record], chance: float) -> list[float]:
    """The values held; chance for a training that held none."""
    values = []
    for record in records:
        value = record.outcome.value
        if value is None or not math.isfinite(value):
            values.append(chance)
        else:
            values.append(float(value))
    return values


def _baseline(records: Sequence[Record], aim: float, goal: Goal) -> Side:
    side = _side(records, aim, goal)
    if goal.target is not None:
        return side
    # Each run of the baseline is timed to the value that it held itself, so that none can miss it.
    reached = []
    for record, value in zip(records, _values(records, goal.chance), strict=True):
        seconds = outcomes.seconds_to(record.outcome.curve, value, goal.direction)
        reached.append(seconds or goal.seconds)
    return dataclasses.replace(side, seconds_to_goal=statistics.fmean(reached), missed=0)


def _side(records: Sequence[Record], aim: float, goal: Goal) -> Side:
    times = [outcomes.seconds_to(record.outcome.curve, aim, goal.direction) for record in records]
    name = goal.metric.removeprefix("val_")
    tests = [record.test[name] for record in records if name in record.test]
    return Side(
        trial=records[0].trial,
        recipe=str(records[0].recipe),
        seeds=len(records),
        score=Mean.of(_scores(records)),
        value=Mean.of(_values(records, goal.chance)),
        test=Mean.of(tests) if tests else None,
        seconds_to_goal=statistics.fmean(goal.seconds if time is None else time for time in times),
        missed=sum(time is None for time in times),
    )
