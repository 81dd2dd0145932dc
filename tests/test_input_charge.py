"""What an update is charged whose input was made ready while the clock stood still."""

import pytest

from kbatch.callbacks.clock import MOST_READY, STEADY, InputCharge


def test_updates_after_a_pause_cost_at_least_the_pipeline():
    charge = InputCharge(0.1)
    assert charge.of(0.01) == 0.01  # nothing was made ready
    charge.paused(0.25)  # in which two batches can be made
    assert [charge.of(0.01), charge.of(0.3), charge.of(0.01)] == [0.1, 0.3, 0.01]


def test_pauses_add_up_to_what_a_pipeline_holds_at_most():
    charge = InputCharge(0.1)
    charge.paused(0.06)
    charge.paused(0.06)
    assert [charge.of(0.0), charge.of(0.0)] == [0.1, 0.0]
    charge.paused(1e6)
    assert [charge.of(0.0) for _ in range(MOST_READY + 1)].count(0.1) == MOST_READY


def test_steady_updates_show_what_the_pipeline_takes_now():
    charge = InputCharge(0.1)
    for _ in range(STEADY):
        assert charge.of(0.02) == 0.02
    charge.paused(0.02)
    assert charge.of(0.0) == pytest.approx(0.02)


def test_a_pipeline_without_a_time_charges_nothing():
    charge = InputCharge()
    charge.paused(10.0)
    assert [charge.of(0.01) for _ in range(3)] == [0.01] * 3
