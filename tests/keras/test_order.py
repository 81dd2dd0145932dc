"""The order of examples: each once a pass, decided by the seed alone."""

import itertools

import numpy as np
import pytest

from kbatch.data.order import shuffled_batches


def numbers(examples, batch_size, seed, count):
    batches = shuffled_batches(examples, batch_size, seed).as_numpy_iterator()
    found = list(itertools.islice(batches, -(-count // batch_size)))
    assert {len(batch) for batch in found} == {batch_size}
    return np.concatenate(found)[:count]


@pytest.mark.parametrize(("examples", "batch_size"), [(10, 3), (7, 7), (5, 8), (6, 2)])
def test_each_pass_has_every_example_once(examples, batch_size):
    passes = numbers(examples, batch_size, 0, 4 * examples).reshape(4, examples)
    assert (np.sort(passes) == np.arange(examples)).all()
    assert len({tuple(order) for order in passes}) > 1


def test_the_order_depends_on_the_seed_and_not_on_the_batch_size():
    first = numbers(20, 4, 1, 60)
    assert np.array_equal(numbers(20, 7, 1, 60), first)
    assert not np.array_equal(numbers(20, 4, 2, 60), first)
