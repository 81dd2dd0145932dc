"""Sizes as lines in the batch size: sums and multiples of lines are those of their values."""

import pytest

from kbatch.tracing.size import Moment, Size

FIRST, SECOND, THIRD = Size(10.0, 3.0), Size(0.5, 0.0), Size(0.0, 7.0)


@pytest.mark.parametrize("batch_size", [0, 1, 32, 1000])
def test_lines_add_and_multiply_as_their_values(batch_size):
    one, other = FIRST.at(batch_size), SECOND.at(batch_size)
    assert one == 10.0 + 3.0 * batch_size
    assert (FIRST + SECOND).at(batch_size) == pytest.approx(one + other)
    assert FIRST.times(2.5).at(batch_size) == pytest.approx(2.5 * one)
    assert (FIRST + Size()).at(batch_size) == one


@pytest.mark.parametrize("batch_size", [1, 32])
def test_a_moment_is_the_sum_of_its_parts(batch_size):
    parts = (FIRST, SECOND, THIRD)
    total = Moment(*parts).total.at(batch_size)
    assert total == pytest.approx(sum(part.at(batch_size) for part in parts))
