"""Sentences: the headline, whatever the search came to, and what is said of one at chance."""

import dataclasses
import re
from dataclasses import replace

import pytest
from result_records import GOAL, confirmation, failed, keep, record

import kbatch
from kbatch.outcome import Goal
from kbatch.results.claim import claim_of
from kbatch.results.sentences import TAILS, headline, learned, title

BASELINE = record(-1, 0.2, "baseline")


def line(records, goal=GOAL):
    return headline(records, claim_of(records, goal, 400), goal)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "No trial has ended yet, so there is no best recipe."),
        ([BASELINE], "No trial has ended yet"),
        ([BASELINE, failed(record(0, 0.1))], "The only trial failed, so there is no best recipe."),
        ([failed(record(0, 0.1)), failed(record(1, 0.1))], "None of 2 trials ended well, so"),
        ([record(0, 0.1, ended="stopped")], "The only trial was stopped at a rung, so"),
        ([record(n, 0.1, ended="stopped") for n in (0, 1)], "All 2 trials were stopped at a rung"),
        ([BASELINE, record(0, 0.3)], "The only trial, trial 0 (batch 32, adam 0.001), held"),
        ([BASELINE, record(0, 0.3), record(1, 0.1)], "Of 2 trials, trial 0"),
        (
            [record(0, 0.4), record(1, 0.1), replace(record(2, 0.2, seed=9), repeats=0)],
            "scored highest as the mean of 2 trainings and held val_accuracy 0.770",
        ),
        ([record(0, 0.3)], "nothing is claimed before fresh seeds confirm it"),
    ],
)
def test_without_a_confirmation_nothing_is_claimed(records, words):
    said = line(records)
    assert words in said
    assert not any(tail in said for tail in TAILS.values())


@pytest.mark.parametrize(
    ("levels", "seeds", "verdict"),
    [
        ({-1: 0.2, 0: 0.35}, 3, "better"),
        ({-1: 0.35, 0: 0.2}, 3, "worse"),
        ({-1: 0.3, 0: 0.3}, 3, "noise"),
        ({-1: 0.2, 0: 0.35}, 2, "few seeds"),
    ],
)
def test_a_confirmation_is_told_with_its_verdict(levels, seeds, verdict):
    records = [record(0, 0.3), *confirmation(levels, seeds)]
    said = line(records)
    claim = claim_of(records, GOAL, 400)
    assert claim.verdict == verdict
    assert said.endswith(f"{TAILS[verdict]}.")
    assert f"over {seeds} fresh seeds each" in said
    assert f"{claim.baseline.value.mean:.3f} ± " in said
    assert f"to {claim.best.value.mean:.3f} ± " in said
    assert ("times sooner" in said) == (verdict == "better")
    short = title(records, claim, GOAL)
    assert short.startswith(f"{GOAL.metric} {claim.baseline.value.mean:.3f} → ")
    assert short.endswith(TAILS[verdict])
    assert len(short) < 100


def test_a_target_is_named_where_it_was_reached_sooner():
    goal = replace(GOAL, target=0.6)
    records = [record(0, 0.3, goal=goal), *confirmation({-1: 0.2, 0: 0.45}, 5, goal=goal)]
    assert re.search(r"times sooner at 0\.6: ", line(records, goal))


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
