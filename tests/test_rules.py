"""Rules for other batch sizes: learning rates by products, micro-batches by brute force."""

import pytest

from kbatch.errors import SpaceError
from kbatch.rules.scaling import (
    LEARNING_RATE_RULES,
    MOST_PASSES,
    check_micro_batches,
    learning_rate_factor,
    micro_batch_of,
)


@pytest.mark.parametrize("rule", LEARNING_RATE_RULES)
def test_two_steps_of_a_rule_are_one_step(rule):
    for first, second in ((2, 8), (4, 4), (1, 16)):
        whole = learning_rate_factor(32 * first * second, rule)
        assert whole == pytest.approx(
            learning_rate_factor(32 * first, rule) * learning_rate_factor(32 * second, rule)
        )
    assert learning_rate_factor(32, rule) == 1.0


def test_an_unknown_rule_is_refused():
    with pytest.raises(SpaceError, match="linear, sqrt, constant"):
        learning_rate_factor(64, "cubic")


@pytest.mark.parametrize("limit", [1, 7, 16, 40, 100])
def test_a_micro_batch_is_the_largest_divisor_within_the_limit(limit):
    for batch_size in range(1, 200):
        divisors = [size for size in range(1, limit + 1) if batch_size % size == 0]
        expected = None if batch_size <= limit else max(divisors)
        assert micro_batch_of(batch_size, limit) == expected
        assert micro_batch_of(batch_size, None) is None


@pytest.mark.parametrize("limit", [7, 16, 40])
def test_batches_that_need_many_more_passes_are_refused(limit):
    for batch_size in range(1, 200):
        passes = batch_size // (micro_batch_of(batch_size, limit) or batch_size)
        if passes > MOST_PASSES * -(-batch_size // limit):
            with pytest.raises(SpaceError, match=f"above `micro_batch_size`, {limit}"):
                check_micro_batches([batch_size], limit)
        else:
            check_micro_batches([batch_size], limit)
