"""The claim of a confirmation: the best recipe against the baseline, with its uncertainty."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kbatch import outcome as outcomes
from kbatch.outcome import Goal
from kbatch.records.store import PARTED, Record
from kbatch.results.interval import FEWEST_SEEDS, interval, measuring_error
from kbatch.results.words import apart, words_of


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
class OwnGain:
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
    part: OwnGain | None = None  # of the recipe, where own hyperparameters differ too
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
        part = OwnGain(side, side.score.mean - baseline.score.mean, half)
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
