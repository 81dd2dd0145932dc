"""A survey of a dataset: its examples, bytes and shapes, compared with NumPy's."""

import numpy as np
import pytest
import tensorflow as tf

from kbatch.data.datasets import Survey, bytes_of_one, survey

X, Y = np.zeros((70, 3, 2), "float32"), np.zeros(70, "int64")


@pytest.mark.parametrize("batch_size", [None, 1, 16])
def test_examples_and_bytes_are_those_of_the_arrays(batch_size):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    if batch_size:
        dataset = dataset.batch(batch_size)
    found = survey(dataset, batched=batch_size is not None)
    assert found == Survey(70, X.nbytes + Y.nbytes, uneven=False)


def test_texts_take_the_bytes_of_their_letters():
    dataset = tf.data.Dataset.from_tensor_slices(["a", "bcd", "é"])
    assert survey(dataset, batched=False).total_bytes == 1 + 3 + 2


def test_examples_of_different_shapes_are_uneven():
    dataset = tf.data.Dataset.from_generator(
        lambda: (np.zeros(size) for size in (3, 3, 4)),
        output_signature=tf.TensorSpec((None,), tf.float64),
    )
    assert survey(dataset, batched=False) == Survey(3, 10 * 8, uneven=True)
    assert not survey(dataset.take(2), batched=False).uneven


def test_bytes_of_one_are_known_where_shapes_and_types_tell():
    known = (tf.TensorSpec((3, 2), tf.float32), tf.TensorSpec((), tf.int64))
    assert bytes_of_one(known) == X[0].nbytes + 8
    assert bytes_of_one(tf.TensorSpec((None, 2), tf.float32)) is None
    assert bytes_of_one(tf.TensorSpec((), tf.string)) is None
