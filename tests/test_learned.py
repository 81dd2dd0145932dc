"""What a report says of a search whose trainings are all at chance."""

import dataclasses

import pytest
from result_records import GOAL, failed, keep, record

import kbatch
from kbatch.outcome import Goal
from kbatch.results.sentences import learned

LOSS = Goal(10.0, "val_loss", "min", 0.693)


def at_chance(trial, purpose="search", goal=GOAL, rise=None):
    """A training that holds chance; `rise` is the value of its one measurement above it."""
    one = record(trial, 0.0, purpose, goal=goal)
    curve = list(one.outcome.curve)
    if rise is not None:
        curve[-1] = (curve[-1][0], rise)
    outcome = dataclasses.replace(one.outcome, curve=tuple(curve))
    return dataclasses.replace(one, outcome=outcome, score=0.0)


@pytest.mark.parametrize("goal", [GOAL, LOSS])
@pytest.mark.parametrize("trials", [1, 3])
def test_nothing_learned_says_what_to_give(trials, goal):
    records = [at_chance(-1, "baseline", goal), *(at_chance(n, goal=goal) for n in range(trials))]
    (sentence,) = learned(records, goal, 400)
    count = "1 trial," if trials == 1 else "3 trials,"
    for text in (count, goal.metric, "seconds_per_trial", "another metric", "check the labels"):
        assert text in sentence


@pytest.mark.parametrize(("goal", "rise"), [(GOAL, 0.8), (LOSS, 0.3)])
@pytest.mark.parametrize("trial", [-1, 1])
def test_the_first_rise_is_told_with_its_seconds(trial, goal, rise):
    purposes = {-1: "baseline"}
    records = [
        at_chance(n, purposes.get(n, "search"), goal, rise if n == trial else None)
        for n in (-1, 0, 1)
    ]
    (sentence,) = learned(records, goal, 400)
    whose = "the baseline" if trial < 0 else "trial 1"
    assert f"after 10 of 10 training seconds, by {whose}: give seconds_per_trial=30" in sentence


def test_a_rise_within_noise_is_none():
    (sentence,) = learned([at_chance(0, rise=0.52)], GOAL, 400)
    assert sentence.startswith("Nothing was learned in any of 1 trial")


@pytest.mark.parametrize(
    "records",
    [
        [],
        [at_chance(-1, "baseline")],
        [failed(record(0, 0.3))],
        [at_chance(-1, "baseline"), record(0, 0.3)],
        [record(-1, 0.3, "baseline"), at_chance(0)],
    ],
)
def test_other_searches_say_nothing_of_it(records):
    assert learned(records, GOAL, 400) == []


def test_the_report_says_it(tmp_path):
    keep(tmp_path, [at_chance(-1, "baseline"), at_chance(0)])
    assert "Nothing was learned in any of 1 trial" in str(kbatch.report(tmp_path / "search"))
