import numpy as np
import pytest
import tensorflow as tf

from kbatch.data import batches, streams
from kbatch.errors import DataError

X = np.arange(10, dtype="float32")[:, None] * np.ones((1, 3), "float32")
Y = np.arange(10, dtype="int32")
DATASET = tf.data.Dataset.from_tensor_slices((X, Y))
VALIDATION = (X[:4], Y[:4])


def taken(source, batch_size, count, seed=0):
    return [tf.nest.map_structure(np.asarray, batch) for batch in source.stream(batch_size, seed).take(count)]


@pytest.mark.parametrize("x", [(X, Y), (DATASET, None), (DATASET.batch(3), None)], ids=["arrays", "dataset", "batched"])
def test_the_stream_is_endless_has_no_partial_batch_and_covers_each_pass(x):
    source = streams.training_source(*x, batched=x[0] is not X and x[0] is not DATASET)
    assert source.examples == 10
    got = taken(source, 4, 25)
    assert all(labels.shape == (4,) for _, labels in got)
    labels = np.concatenate([labels for _, labels in got]).reshape(10, 10)
    assert all(sorted(one_pass) == list(range(10)) for one_pass in labels)
    assert len({tuple(one_pass) for one_pass in labels}) > 5
    assert all(np.array_equal(x[:, 0], y.astype("float32")) for x, y in got)


def test_the_same_seed_gives_the_same_order():
    source = streams.training_source(X, Y)
    first, second, other = (np.concatenate([y for _, y in taken(source, 5, 8, seed)]) for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_nested_inputs_and_sample_weights_stay_together():
    source = streams.training_source({"a": X, "b": X * 2}, Y, np.arange(10.0))
    x, y, weight = taken(source, 10, 1)[0]
    assert np.array_equal(x["b"], 2 * x["a"])
    assert np.array_equal(y.astype(float), weight)


def test_the_fingerprint_tells_data_apart():
    same, other = streams.training_source(X.copy(), Y), streams.training_source(X + 1, Y)
    assert streams.training_source(X, Y).fingerprint() == same.fingerprint() != other.fingerprint()
    assert streams.training_source(DATASET).fingerprint() == streams.training_source(DATASET.map(lambda *e: e)).fingerprint()


@pytest.mark.parametrize("data", [(X, Y), DATASET, DATASET.batch(7)], ids=["arrays", "examples", "batches"])
def test_validation_keeps_its_order_and_its_last_partial_batch(data):
    spec = (tf.TensorSpec((3,)), tf.TensorSpec(()))
    got = list(batches.validation_batches(data, 4, element_spec=spec))
    assert np.array_equal(np.concatenate([y for _, y in got]), Y)
    assert got[0][0].shape.rank == 2


def test_a_split_takes_the_last_examples_as_keras_does():
    data = batches.prepare(X, Y, validation_split=0.3)
    assert data.training.examples == 7
    assert list(data.labels()) == [7, 8, 9]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x": X, "y": Y}, "something to validate on"),
        ({"x": DATASET, "validation_split": 0.2}, "must come with arrays"),
        ({"x": X, "y": Y, "validation_split": 1.5}, "between 0 and 1"),
        ({"x": X, "validation_data": VALIDATION}, "Labels must come"),
        ({"x": X, "y": Y[:5], "validation_data": VALIDATION}, "same number"),
        ({"x": X[:0], "y": Y[:0], "validation_data": VALIDATION}, "at least 1"),
        ({"x": DATASET.repeat(), "validation_data": VALIDATION}, "must end after one pass"),
        ({"x": DATASET.filter(lambda x, y: y > 3), "validation_data": VALIDATION}, "assert_cardinality"),
        ({"x": DATASET, "y": Y, "validation_data": VALIDATION}, "labels and weights itself"),
        ({"x": DATASET.map(lambda x, y: x), "validation_data": VALIDATION}, "must be \\(x, y\\)"),
        ({"x": [[1.0], [2.0]], "y": Y[:2], "validation_data": VALIDATION}, "must be arrays"),
        ({"x": (i for i in X), "y": Y, "validation_data": VALIDATION}, "must be arrays"),
        ({"x": X, "y": Y, "validation_data": X}, "must be \\(x, y\\)"),
    ],
)
def test_what_cannot_be_streamed_is_refused(arguments, text):
    with pytest.raises(DataError, match=text):
        batches.prepare(**arguments)
