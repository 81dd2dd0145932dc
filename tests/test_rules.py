"""Rules for other batch sizes: learning rates by products, micro-batches by brute force."""

import pytest

from kbatch.errors import SpaceError
from kbatch.rules.learning_rate import RULES, factor
from kbatch.rules.micro_batch import MOST_PASSES, check, size_of


@pytest.mark.parametrize("rule", RULES)
def test_two_steps_of_a_rule_are_one_step(rule):
    for first, second in ((2, 8), (4, 4), (1, 16)):
        whole = factor(32 * first * second, rule)
        assert whole == pytest.approx(factor(32 * first, rule) * factor(32 * second, rule))
    assert factor(32, rule) == 1.0


def test_an_unknown_rule_is_refused():
    with pytest.raises(SpaceError, match="linear, sqrt, constant"):
        factor(64, "cubic")


@pytest.mark.parametrize("limit", [1, 7, 16, 40, 100])
def test_a_micro_batch_is_the_largest_divisor_within_the_limit(limit):
    for batch_size in range(1, 200):
        divisors = [size for size in range(1, limit + 1) if batch_size % size == 0]
        expected = None if batch_size <= limit else max(divisors)
        assert size_of(batch_size, limit) == expected
        assert size_of(batch_size, None) is None


@pytest.mark.parametrize("limit", [7, 16, 40])
def test_batches_that_need_many_more_passes_are_refused(limit):
    for batch_size in range(1, 200):
        passes = batch_size // (size_of(batch_size, limit) or batch_size)
        if passes > MOST_PASSES * -(-batch_size // limit):
            with pytest.raises(SpaceError, match=f"above `micro_batch_size`, {limit}"):
                check([batch_size], limit)
        else:
            check([batch_size], limit)
