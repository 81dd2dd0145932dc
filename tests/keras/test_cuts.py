"""Batches whose sizes are decided on the way: no example is lost, doubled or out of order."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from kbatch.data.order import Cuts
from kbatch.data.streams import training_source

SIZES = (2, 3, 6, 7, 31)  # of batches, the last over several passes of ten


def growing(steps=1, within=None):
    sizes = itertools.chain(SIZES, itertools.repeat(4))
    return Cuts(lambda before: next(sizes) * steps, steps, within)


def dataset(n, batched):
    numbers = tf.data.Dataset.range(n).map(lambda i: (i, i))
    return training_source(numbers.batch(3) if batched else numbers, batched=batched)


SOURCES = {
    "arrays": lambda n: training_source(np.arange(n), np.arange(n)),
    "dataset": lambda n: dataset(n, False),
    "batches": lambda n: dataset(n, True),
}


def joined(batches):
    return list(itertools.chain.from_iterable(batches))


def taken(batches, count):
    return [x.numpy().tolist() for x, *_ in itertools.islice(batches, count)]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("steps", [1, 2])
def test_each_pass_has_each_example_once_while_sizes_change(kind, steps):
    cuts = growing(steps)
    found = taken(SOURCES[kind](10).cut(cuts.endless(), 0), 12 * steps)
    wanted = [size for size in (*SIZES, *[4] * 7) for _ in range(steps)]
    assert [len(batch) for batch in found] == wanted
    ids = joined(found)
    passes = np.array(ids[: len(ids) // 10 * 10]).reshape(-1, 10)
    assert (np.sort(passes) == np.arange(10)).all()
    assert len(passes) > 5
    assert len({tuple(order) for order in passes}) > 1
    assert [cuts.size(number) for number in range(12)] == [steps * s for s in (*SIZES, *[4] * 7)]
    assert cuts.examples(5) == steps * sum(SIZES)


@pytest.mark.parametrize("kind", SOURCES)
def test_the_order_is_that_of_batches_of_one_size(kind):
    same = joined(taken(SOURCES[kind](10).stream(4, 3), 20))
    cut = joined(taken(SOURCES[kind](10).cut(growing().endless(), 3), 12))
    assert same[: len(cut)] == cut[: len(same)]


@pytest.mark.parametrize("kind", SOURCES)
def test_one_pass_ends_with_a_smaller_batch_and_the_next_goes_on(kind):
    cuts = growing(within=10)
    batches = SOURCES[kind](10).cut(cuts.one_pass(), 0)
    passes = [taken(batches, 100) for _ in range(3)]
    assert [[len(batch) for batch in found] for found in passes] == [
        [2, 3, 5],
        [7, 3],
        [4, 4, 2],
    ]
    orders = [joined(found) for found in passes]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_dicts_weights_and_lengths_stay_together():
    n = 12
    x = {"a": np.arange(n), "b": np.arange(n * 2).reshape(n, 2).astype("float32")}
    source = training_source(x, np.arange(n), np.arange(n) / 2)
    for a, y, weight in itertools.islice(source.cut(growing().endless(), 0), 4):
        np.testing.assert_array_equal(a["a"], y)
        np.testing.assert_array_equal(a["b"][:, 0], 2 * y)
        np.testing.assert_allclose(weight, y.numpy() / 2)


def test_each_batch_is_padded_to_its_own_longest():
    lengths = [1, 5, 2, 3, 7, 4]

    def one(length):
        return tf.fill([length], length), length

    ragged = (
        tf.data.Dataset.from_tensor_slices(lengths)
        .map(one)
        .padded_batch(2, padded_shapes=([None], []), padding_values=(-1, 0))
    )
    source = training_source(ragged, batched=True)
    for x, y in itertools.islice(source.cut(growing().endless(), 0), 4):
        assert x.shape[1] >= max(y.numpy())
        assert sorted(y.numpy()) == sorted(x[:, 0].numpy())
