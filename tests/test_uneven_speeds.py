"""Uneven speeds: recipes whose fresh seeds trained at very different speeds are told."""

import dataclasses

from result_records import GOAL, record

from kbatch.results.loading import uneven_speeds
from kbatch.results.report import markdown_page


def trained(trial, examples, purpose="confirmation", device="", **recipe):
    """A training of ten seconds on so many examples."""
    one = record(trial, 0.3, purpose, changes={"examples": examples}, **recipe)
    assert one.outcome.examples_per_second == examples / 10
    return dataclasses.replace(one, device=device)


def test_a_recipe_of_two_speeds_is_named():
    records = [trained(-1, 40_000), trained(2, 29_000), trained(-1, 41_000), trained(2, 9_000)]
    (said,) = uneven_speeds(records)
    assert said.startswith("trial 2's fresh seeds trained on 900 to 2,900 examples per second")
    assert f"- {said}" in markdown_page(records, GOAL, [], None, {})
    assert uneven_speeds(records[:3]) == []


def test_only_what_should_be_as_fast_is_compared():
    fast, slow = trained(1, 29_000), trained(1, 9_000)
    assert len(uneven_speeds([fast, slow])) == 1
    # the search's own trainings may have had the machine for themselves
    assert uneven_speeds([trained(1, 29_000, "search"), slow]) == []
    assert uneven_speeds([trained(1, 29_000, device="NVIDIA H200"), slow]) == []
    assert uneven_speeds([trained(2, 29_000), slow]) == []
    growing = [trained(1, count, batch_schedule="exponential:8") for count in (29_000, 9_000)]
    assert uneven_speeds(growing) == []
    broken = record(1, 0.3, "confirmation", ended="nan", changes={"examples": 290_000})
    assert uneven_speeds([broken, slow]) == []
    short = record(1, 0.3, "confirmation", changes={"examples": 90, "train_seconds": 0.9})
    assert uneven_speeds([short, fast]) == []


def test_what_differs_by_chance_is_not_named():
    assert uneven_speeds([trained(1, 20_000), trained(1, 29_000)]) == []
