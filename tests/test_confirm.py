"""Confirming steps down until a size passes, and says what failed."""

import dataclasses

import numpy as np
import pytest

from kbatch.memory._max_batch import Probe, SearchResult
from kbatch.memory._search import any_size, power_of_two, stepping_down, tried


def confirmer(most, log=None, phase="training"):
    def confirm(size):
        if log is not None:
            log.append(size)
        return Probe(
            size,
            "passed" if size <= most else "out_of_memory",
            10 * size,
            1.0,
            (0.1,) * 20,
            phase=phase,
        )

    return confirm


def confirmed(confirm, size, step, allowed):
    return SearchResult.of((), tried(stepping_down(size, step, allowed), confirm))


def alone(*arguments, **named):
    """A size is confirmed in one process."""
    confirm = confirmer(*arguments, **named)
    return lambda size: [confirm(size)]


@pytest.mark.parametrize("most", [1, 2, 7, 30, 44, 99, 100])
@pytest.mark.parametrize("step", [0.01, 0.05])
def test_it_ends_on_a_size_that_passed(most, step):
    found = confirmed(alone(most), 100, step, any_size)
    assert found.batch_size <= most
    assert found.batch_size in [probe.batch_size for probe in found.confirmations if probe.passed]
    assert not found.first_failing or found.first_failing - found.batch_size <= max(
        1, np.ceil(step * found.first_failing)
    )
    assert found.first_failing == min(
        (probe.batch_size for probe in found.confirmations if not probe.passed), default=None
    )
    assert len(found.confirmations) <= 20


def test_the_first_two_steps_are_equal_and_later_ones_double():
    log = []
    confirmed(alone(50, log), 100, 0.05, any_size)
    assert log[:6] == [100, 95, 90, 81, 64, 38]


def test_after_long_steps_down_the_middle_is_tried():
    log = []
    found = confirmed(alone(50, log), 100, 0.05, any_size)
    assert log[6:] == [51, 44, 47, 49]
    assert (found.batch_size, found.first_failing) == (49, 51)


def test_nothing_passes_or_nothing_is_left():
    assert confirmed(alone(0), 3, 0.05, any_size).batch_size == 0
    assert confirmed(alone(0), 0, 0.05, any_size).confirmations == ()


def test_only_allowed_sizes_are_confirmed():
    log = []
    assert confirmed(alone(20, log), 64, 0.05, power_of_two).batch_size == 16
    assert log == [64, 32, 16]


def test_what_trains_but_cannot_be_validated_does_not_pass():
    assert confirmed(alone(4, phase="validation"), 8, 0.05, any_size).batch_size == 4


def test_all_processes_must_pass_and_all_are_kept():
    passes = confirmer(100)

    def third_fails_at_60(size):
        fails = dataclasses.replace(passes(size), ended="out_of_memory")
        return [passes(size), passes(size), fails if size == 60 else passes(size)]

    found = confirmed(third_fails_at_60, 60, 0.05, any_size)
    assert found.batch_size < 60 == found.first_failing
    assert len(found.confirmations) % 3 == 0
    assert found.confirmed_steps == 60
