"""Records of searches that nobody ran, for the tests of results."""

import dataclasses
import math

from kbatch import Outcome, Recipe
from kbatch import outcome as outcomes
from kbatch.outcome import Goal
from kbatch.records import project
from kbatch.records.store import Record, Store

SECONDS = 10.0
GOAL = Goal(SECONDS, "val_accuracy", "max", 0.5)


def record(
    trial,
    level,
    purpose="search",
    seed=0,
    speed=1.0,
    ended="horizon",
    values=None,
    goal=GOAL,
    changes=None,
    **recipe,
):
    """A training whose value rises from chance by `level`; with a target it ends there."""
    sign = 1 if goal.direction == "max" else -1
    curve = tuple(
        (t, goal.chance + sign * level * (1 - math.exp(-speed * t / 3)))
        for t in outcomes.marks(goal.seconds)
    )
    reached = (
        None if goal.target is None else outcomes.seconds_to(curve, goal.target, goal.direction)
    )
    if reached is not None:
        curve, ended = tuple(point for point in curve if point[0] <= reached), "target"
    held = outcomes.held(curve, goal.direction)
    outcome = Outcome(
        ended,
        curve,
        held.value,
        {goal.metric: held.value},
        curve[-1][0],
        0.01,
        1000,
        32000,
        {"total": 12.0},
        10**8,
        learning_rate=0.1,
    )
    outcome = dataclasses.replace(outcome, **(changes or {}))
    score = (
        outcomes.score(curve, goal.seconds, goal.chance, goal.target, goal.direction)
        if ended in ("horizon", "target", "callback")
        else 0.0
    )
    test = (
        {goal.metric.removeprefix("val_"): held.value - 0.01} if purpose == "confirmation" else {}
    )
    return Record(
        f"{purpose}{trial}{seed}",
        purpose,
        trial,
        seed,
        Recipe(**recipe),
        outcome,
        score,
        values or {},
        test=test,
    )


def failed(one, ended="out_of_memory"):
    """The same training, failed."""
    return dataclasses.replace(
        one, score=0.0, outcome=dataclasses.replace(one.outcome, ended=ended, value=None, curve=())
    )


def keep(folder, records, goal=GOAL, examples=400, **facts):
    """A project's folder that holds these records."""
    store = Store(folder / "search" / "kbatch")
    for one in records:
        store.start(one.key)
        store.end(one)
    project.save_facts(
        folder / "search" / "kbatch",
        {"goal": goal.to_dict(), "data": {"validation": {"examples": examples}}, **facts},
    )
    return folder


def confirmation(levels, seeds, **fields):
    """Trainings with fresh seeds.

    `levels` maps a trial (-1 for the baseline) to its level, which rises a little with the seed.
    """
    return [
        record(
            trial,
            level + 0.003 * seed,
            "confirmation",
            seed,
            batch_size=32 if trial < 0 else 64 * 2**trial,
            **fields,
        )
        for seed in range(1, seeds + 1)
        for trial, level in levels.items()
    ]
