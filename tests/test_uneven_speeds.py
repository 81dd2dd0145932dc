"""Uneven speeds: what something else slowed down is told."""

from result_records import GOAL, record

from kbatch.results.report_page import markdown_page
from kbatch.results.uneven_speeds import uneven_speeds


def trained(trial, examples, purpose="confirmation", seed=1, ended="horizon"):
    one = record(trial, 0.3, purpose, seed, ended=ended, changes={"examples": examples})
    assert one.outcome.examples_per_second == examples / 10
    return one


def test_a_recipe_that_was_slowed_down_is_named():
    records = [
        trained(-1, 40_000, "baseline", seed=0),
        trained(2, 29_000, "search", seed=0),
        trained(-1, 41_000),
        trained(2, 9_000),
    ]
    (said,) = uneven_speeds(records)
    assert said.startswith("trial 2's trainings took 900 to 2,900 examples per second")
    assert f"- {said}" in markdown_page(records, GOAL, [], None, {})


def test_trainings_of_different_lengths_are_not_compared():
    assert uneven_speeds([trained(1, 9_000, ended="stopped"), trained(1, 29_000)]) == []


def test_what_differs_by_chance_is_not_named():
    assert uneven_speeds([trained(1, 20_000), trained(1, 29_000, seed=2)]) == []
    assert uneven_speeds([trained(1, 20_000), trained(2, 90_000)]) == []
