"""The headline: one sentence, whatever the search came to."""

import re
from dataclasses import replace

import pytest
from result_records import GOAL, confirmation, failed, record

from kbatch.results.claim import claim_of
from kbatch.results.sentences import TAILS, headline, title

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
