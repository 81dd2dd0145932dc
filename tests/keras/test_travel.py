"""Data on their way to another process: what comes out gives the same batches."""

import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbatch.data import travel, validation
from kbatch.data.validation import prepare
from kbatch.errors import DataError

X = np.arange(120, dtype="float32").reshape(30, 4)
Y = np.arange(30) % 2
HELD_OUT = (X[:10], Y[:10])


def brought(data, folder):
    """Data after their way through bytes."""
    return pickle.loads(pickle.dumps(travel.parcel(data, folder))).data()


def batches(dataset, count=5):
    return [keras.tree.map_structure(np.asarray, batch) for batch in dataset.take(count)]


def same(first, second):
    keras.tree.map_structure(np.testing.assert_array_equal, first, second)
    return True


ARRAYS = {
    "one": (X, Y),
    "two inputs": ({"a": X, "b": X[:, :1]}, Y),
    "weights": (X, Y, np.linspace(0, 1, 30, dtype="float32")),
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("mapped_bytes", [1, 1 << 20])
def test_arrays_come_in_the_same_order(tmp_path, monkeypatch, kind, mapped_bytes):
    monkeypatch.setattr(travel, "MAPPED_BYTES", mapped_bytes)
    data = prepare(*ARRAYS[kind], validation_data=HELD_OUT)
    other = brought(data, tmp_path)
    assert bool(list(tmp_path.iterdir())) == (mapped_bytes == 1)
    assert same(batches(other.training.stream(8, 3)), batches(data.training.stream(8, 3)))
    assert same(batches(other.validation), batches(data.validation))
    assert other.training.examples == 30
    assert other.training.element_spec == data.training.element_spec


ROWS = tf.data.Dataset.from_tensor_slices((X, Y))
DATASETS = {
    "single": ROWS,
    "batched": ROWS.batch(7),
    "cached": ROWS.map(lambda x, y: (x * 2, y)).cache(),
    "filtered": ROWS.filter(lambda x, y: y > 0),
    "padded": ROWS.map(lambda x, y: (tf.range(tf.cast(x[0], tf.int32) % 3 + 1), y)).padded_batch(5),
}


@pytest.mark.parametrize("kind", DATASETS)
def test_a_dataset_comes_with_what_was_learned_of_it(tmp_path, kind):
    batched = kind in ("batched", "padded")
    data = prepare(DATASETS[kind], validation_data=HELD_OUT, batched=batched)
    other = brought(data, tmp_path)
    assert same(batches(other.training.stream(4, 3)), batches(data.training.stream(4, 3)))
    assert same(batches(other.validation), batches(data.validation))
    for name in ("examples", "remarks", "remedy", "element_spec"):
        assert getattr(other.training, name) == getattr(data.training, name)
    assert other.remarks == data.remarks
    assert data.training.given is DATASETS[kind]  # the one at home keeps its dataset


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_whether_validation_data_are_kept_comes_along(tmp_path, monkeypatch, cache_bytes):
    monkeypatch.setattr(validation, "VALIDATION_CACHE_BYTES", cache_bytes)
    data = prepare(X, Y, validation_data=ROWS.batch(5))
    assert brought(data, tmp_path).kept == (cache_bytes > 0)


def test_a_random_dataset_stays_random(tmp_path):
    tf.random.set_seed(None)  # with a seed, which another test may have set, each pass is the same
    random = ROWS.map(lambda x, y: (x + tf.random.uniform(()), y))
    other = brought(prepare(random, validation_data=HELD_OUT), tmp_path)
    first, again = (batches(other.training.unshuffled(30), 1) for _ in range(2))
    assert (first[0][0] != again[0][0]).all()


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[index * 10 : index * 10 + 10], Y[index * 10 : index * 10 + 10]


PYTHON = {
    "py_function": ROWS.map(
        lambda x, y: (tf.ensure_shape(tf.py_function(lambda a: a, [x], tf.float32), (4,)), y)
    ),
    "numpy_function": ROWS.map(
        lambda x, y: (tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32), (4,)), y)
    ),
    "generator": tf.data.Dataset.from_generator(
        lambda: zip(X, Y, strict=True),
        output_signature=(tf.TensorSpec((4,)), tf.TensorSpec((), tf.int64)),
    ),
    "PyDataset": Sequence(),
}


@pytest.mark.parametrize("kind", PYTHON)
@pytest.mark.parametrize("held_out", [False, True])
def test_steps_of_python_are_refused(tmp_path, kind, held_out):
    if held_out:
        data, words = prepare(X, Y, validation_data=PYTHON[kind]), "validation data"
    else:
        data, words = prepare(PYTHON[kind], validation_data=HELD_OUT), "training data"
    with pytest.raises(DataError, match=rf"travel to another process.*{words}.*calls Python"):
        travel.parcel(data, tmp_path)


def test_what_was_prepared_elsewhere_has_no_labels(tmp_path):
    with pytest.raises(NotImplementedError):
        brought(prepare(X, Y, validation_data=HELD_OUT), tmp_path).labels()
