"""The batch size from which on larger batches gain no speed, on made-up seconds per step."""

import pytest

from kbatch.memory._estimate import GAIN, SIZES, SpeedBound, speed_bound
from kbatch.memory._max_batch import Probe


def steps_of(fixed, per_example, asked):
    def steps(batch_size, count):
        asked.append(batch_size)
        seconds = fixed + per_example * batch_size
        return Probe(batch_size, "passed", 1, 1.0, (9.9, *[seconds] * (count - 1)))

    return steps


@pytest.mark.parametrize(("fixed", "per_example"), [(0.1, 1e-5), (0.02, 1e-6), (1.0, 2e-4)])
def test_from_there_on_twice_the_batch_gains_less_than_the_gain(fixed, per_example):
    def speed(batch_size):
        return batch_size / (fixed + per_example * batch_size)

    asked = []
    flat = speed_bound(steps_of(fixed, per_example, asked), 10**9).flat
    assert tuple(asked) == SIZES
    assert speed(2 * flat) / speed(flat) - 1 == pytest.approx(GAIN, rel=0.02)


def test_sizes_up_to_the_measured_ones_are_worth_trying():
    assert speed_bound(steps_of(0.0, 1e-3, []), 10**9).flat == SIZES[-1]


def test_where_memory_bounds_the_batch_nothing_is_measured():
    asked = []
    assert speed_bound(steps_of(0.1, 1e-5, asked), SIZES[-1]) == SpeedBound()
    assert asked == []


def test_the_lower_of_both_bounds_holds():
    assert SpeedBound(flat=100).lowered(64) == 64
    assert SpeedBound(flat=100).lowered(200) == 100
    assert SpeedBound().lowered(200) == 200
