"""Prospects: what more search may bring, beside what a confirmation could tell."""

import dataclasses
import math

import numpy as np
import pytest
from result_records import GOAL, keep, record
from scipy import stats

from kbatch.results import report
from kbatch.results.prospects import GAIN, GAIN_FROM, Prospects, prospects_of

EXAMPLES = 400
METRIC = dataclasses.replace(GOAL, metric="val_auc")  # of unknown noise of measuring


def searched(*levels, again=None):
    """A baseline, a trial of each level, and the first one again."""
    made = [record(-1, 0.1, "baseline"), *(record(at, level) for at, level in enumerate(levels))]
    if again is not None:
        made.append(dataclasses.replace(record(len(levels), again), repeats=0, key="again"))
    return made


def test_told_apart_is_the_interval_of_five_seeds():
    records = searched(0.4, 0.2, again=0.36)
    first, again = records[1].score, records[-1].score
    deviation = np.std([first, again], ddof=1)
    freedom, seeds = 8, 5
    half = stats.t.ppf(0.975, freedom) * deviation * math.sqrt(2 / seeds)
    found = prospects_of(records, METRIC, 0)
    assert found.told_apart == pytest.approx(half / np.mean([first, again]))
    # what is measured on few examples is told apart less well
    assert prospects_of(records, GOAL, EXAMPLES).told_apart > found.told_apart


def test_horizons_are_training_seconds_of_baseline_and_trials():
    records = searched(0.4, 0.2)
    spent = sum(each.outcome.train_seconds for each in records)
    found = prospects_of([*records, record(0, 0.4, "confirmation", seed=7)], GOAL, EXAMPLES)
    assert found.horizons == pytest.approx(spent / GOAL.seconds)
    assert found.gain == pytest.approx(GAIN / (found.horizons + GAIN_FROM))


def test_more_is_worth_it_until_it_cannot_be_told():
    assert Prospects(3.0, None).is_worth_it
    for told_apart in (0.005, 0.01, 0.02):
        worth = [Prospects(float(at), told_apart).is_worth_it for at in range(200)]
        assert worth[0]
        assert not worth[-1]
        assert worth == sorted(worth, reverse=True)


@pytest.mark.parametrize(
    ("records", "goal"),
    [
        (searched(), GOAL),
        (searched(-0.1), GOAL),
        (searched(0.4), dataclasses.replace(GOAL, target=0.8)),
    ],
    ids=["no trial", "at chance", "with a target"],
)
def test_nothing_is_said_of_what_was_not_recorded(records, goal):
    assert prospects_of(records, goal, EXAMPLES) is None


@pytest.mark.parametrize("own", [True, False])
def test_the_report_tells_it_of_kbatchs_own_search(own, tmp_path):
    keep(tmp_path, searched(0.4, 0.2), **({"tuner": "kbatch"} if own else {}))
    said = str(report.report(tmp_path))
    assert ("Another 10 horizons of search (100 training seconds) raise" in said) == own
