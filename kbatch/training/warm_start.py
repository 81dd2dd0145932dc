"""Warm start: what the project of an earlier search tells a new one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from kbatch.errors import SearchError
from kbatch.outcome import SCORED, STOPPED, Goal
from kbatch.records import project
from kbatch.records.store import Record
from kbatch.results.loading import folder_of, load_records
from kbatch.search import axis_ranges
from kbatch.search.oracle import values_at_rungs
from kbatch.search.proposals import Observation

SAME = ("signature", "metric", "direction")  # facts that must be those of the earlier search
LATE = 1.02  # a measurement follows its moment by an update


def observations(
    folder: str | os.PathLike[str], facts: Mapping[str, Any], space: list[Any]
) -> list[Observation]:
    """Return what an earlier search has seen, and print how much of it is of use.

    Trials that failed are left out, since another device may hold them, and those that the new
    space cannot draw.

    Args:
        folder: Folder of its project.
        facts: Mapping, the facts of the new project.
        space: List of KerasTuner's hyperparameters of the new search.

    Raises:
        RecordError: If there are no records.
        SearchError: If it searched another model, or judged by another metric.
    """
    before = project.load_facts(folder_of(folder)) or {}
    differing = [name for name in SAME if before.get(name) != facts.get(name)]
    if differing:
        words = ", ".join(f"another {name}" for name in differing)
        raise SearchError(
            "A warm start must come from a search of the same model by the same metric",
            f"{folder} with {words}",
            "Leave it out of warm_start",
        )
    goal = Goal.from_dict(facts["goal"])
    drawn = [each for each in load_records(folder) if not each.baseline]
    records = [each for each in drawn if each.values]
    # which tell nothing, but a new search draws them
    idle = {each.name: each.default for each in space if each.name in before.get("idle", ())}
    records = [dataclasses.replace(each, values={**idle, **each.values}) for each in records]
    found = [observation(record, goal, space) for record in records if _is_sound(record, space)]
    print(
        f"warm start: {len(found)} of {len(records)} trainings in {folder} are of use", flush=True
    )
    return found


def observation(record: Record, goal: Goal, space: list[Any]) -> Observation:
    """Return what an earlier training tells, at the horizon of the new search.

    Its curve is cut there. One that ends before counts as stopped, since nobody knows how it would
    have gone on.

    Args:
        record: Record of the training.
        goal: `Goal` of the new search.
        space: List of its hyperparameters.
    """
    curve = [each for each in record.outcome.curve if each[0] <= LATE * goal.seconds]
    outcome = dataclasses.replace(record.outcome, curve=tuple(curve))
    whole = record.outcome.train_seconds * LATE >= goal.seconds or goal.target is not None
    return Observation(
        axis_ranges.completed(space, record.values),
        values_at_rungs(curve, goal.seconds, goal.gain),
        goal.score(outcome) if whole and outcome.ended in SCORED else None,
    )


def _is_sound(record: Record, space: list[Any]) -> bool:
    ended = record.outcome.ended in (*SCORED, STOPPED)
    return ended and axis_ranges.can_draw(space, record.values)
