"""One side of a comparison: a search with its baseline and its best recipe."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbatch import scoring
from kbatch.goal import Goal
from kbatch.records import project
from kbatch.records.store import Record
from kbatch.results.confirmed_recipes import confirmed
from kbatch.results.loading import (
    folder_of,
    load_goal,
    load_race,
    load_records,
    load_validation_examples,
    root_of,
)
from kbatch.results.ranking import trainings_of
from kbatch.results.score_interval import measuring_error
from kbatch.results.winner import best_of

BASELINE, BEST = "baseline", "best"


@dataclass(frozen=True)
class Trained:
    """The trainings of one recipe: those of the confirmation, or else that of the search.

    Attributes:
        records: The trainings, each with a seed of its own.
        fresh: Whether they are those of a confirmation.
    """

    records: tuple[Record, ...]
    fresh: bool

    @property
    def scores(self) -> list[float]:
        """The score of each training."""
        return [record.score for record in self.records]

    @property
    def value(self) -> float | None:
        """Float, the mean of the values held; `None` if none held any."""
        values = [record.outcome.value for record in self.records]
        known = [value for value in values if value is not None and math.isfinite(value)]
        return statistics.fmean(known) if known else None

    def seconds_to(self, aim: float | None, goal: Goal) -> float | None:
        """Return the mean training seconds until a value was held; `None` if a training missed it.

        Args:
            aim: Float, the value; `None` if there is none.
            goal: The goal of the search.
        """
        if aim is None:
            return None
        curves = [record.outcome.curve for record in self.records]
        times = [scoring.seconds_to(curve, aim, goal.direction) for curve in curves]
        known = [time for time in times if time is not None]
        return statistics.fmean(known) if len(known) == len(times) else None


@dataclass(frozen=True)
class SearchedSide:
    """A search, as a comparison looks at it.

    Attributes:
        name: String, its folder.
        goal: Its goal.
        facts: The facts that it was started with.
        examples: Integer, how many validation examples its metric was measured on.
        trained: `Trained` of the baseline and of the best recipe, as far as there are any.
        recipes: Integer, how many recipes were confirmed besides the baseline.
    """

    name: str
    goal: Goal
    facts: Mapping[str, Any]
    examples: int
    trained: Mapping[str, Trained]
    recipes: int

    @property
    def aim(self) -> float | None:
        """Float, the target, or without one the value that the baseline held."""
        if self.goal.target is not None:
            return self.goal.target
        own = self.trained.get(BASELINE)
        return None if own is None else own.value

    def measuring_error(self, what: str) -> float:
        """Return the standard error of measuring one score, of the `"baseline"` or `"best"`."""
        return measuring_error(self.trained[what].records, self.goal, self.examples)


def side_of(source: Any) -> SearchedSide:
    """Read a search as one side of a comparison.

    Args:
        source: Tuner or folder of the search.

    Raises:
        RecordError: If there are no records, or they cannot be read.
    """
    records = load_records(source)
    groups = [tuple(group) for group in confirmed(records).values()]
    trained: dict[str, Trained] = {}
    own = next((group for group in groups if group[0].baseline), ())
    once = tuple(record for record in records if record.purpose == BASELINE)
    if own or once:
        trained[BASELINE] = Trained(own or once, bool(own))
    best = best_of(records, load_race(source).dropped)
    if best is not None:
        fresh = _confirmed_of(groups, best)
        trained[BEST] = Trained(fresh or tuple(trainings_of(records, best)), bool(fresh))
    return SearchedSide(
        str(root_of(source)),
        load_goal(source),
        project.load_facts(folder_of(source)) or {},
        load_validation_examples(source),
        trained,
        sum(not group[0].baseline for group in groups),
    )


def _confirmed_of(groups: Sequence[tuple[Record, ...]], best: Record) -> tuple[Record, ...]:
    """The trainings with fresh seeds of a trial's recipe."""
    wanted = best.trial, best.recipe
    return next((group for group in groups if (group[0].trial, group[0].recipe) == wanted), ())
