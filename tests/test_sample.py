"""What is taken from the user's data to measure with: a few examples, and how many there are."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbatch.memory._workload import ROWS, sample_of

X, Y = np.arange(240, dtype="float32").reshape(40, 6), np.arange(40, dtype="int32")
EXAMPLES = tf.data.Dataset.from_tensor_slices((X, Y))


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[16 * index : 16 * index + 16], Y[16 * index : 16 * index + 16]


def generated():
    spec = tf.TensorSpec((None, 6)), tf.TensorSpec((None,), tf.int32)
    return tf.data.Dataset.from_generator(lambda: iter([(X[:8], Y[:8])]), output_signature=spec)


@pytest.mark.parametrize(
    ("data", "examples"),
    [
        (EXAMPLES, 40),
        (EXAMPLES.batch(16), 40),
        (EXAMPLES.batch(16, drop_remainder=True), 32),
        (EXAMPLES.padded_batch(16).cache().prefetch(2), 40),
        (EXAMPLES.shuffle(1).batch(16).map(lambda a, b: (a, b)).repeat(), 40),
        (EXAMPLES.batch(8).take(2), 16),
        (EXAMPLES.batch(8).unbatch(), None),
        (EXAMPLES.filter(lambda a, b: True).batch(8), None),
        (Batches(), 33),  # at least: the last of three may hold a single one
    ],
)
def test_batches_are_told_from_examples(data, examples):
    sample, count = sample_of(data)
    assert [part.shape for part in sample] == [(ROWS, 6), (ROWS,)]
    np.testing.assert_array_equal(sample[1], Y[:ROWS])
    assert count == examples


def test_batches_that_only_their_shape_tells():
    sample, count = sample_of(generated())
    assert ([part.shape for part in sample], count) == ([(ROWS, 6), (ROWS,)], None)


def test_lists_are_several_inputs():
    (inputs, labels), count = sample_of([X, X[:, :2]], [Y, Y])
    assert ([part.shape for part in inputs], len(labels), count) == ([(ROWS, 6), (ROWS, 2)], 2, 40)
    assert isinstance(inputs, tuple)  # tf.data takes a list for one tensor


def test_text_and_plain_lists_of_labels():
    (words, labels), count = sample_of(np.array(["one", "two"]), [0, 1])
    assert (list(words), list(labels), count) == (["one", "two"], [0, 1], 2)
