import keras
import numpy as np
import pytest
import tensorflow as tf

from kbatch.data import streams, validation
from kbatch.errors import DataError

X = np.arange(10, dtype="float32")[:, None] * np.ones((1, 3), "float32")
Y = np.arange(10, dtype="int32")
DATASET = tf.data.Dataset.from_tensor_slices((X, Y))
VALIDATION = (X[:4], Y[:4])
UNEVEN = tf.data.Dataset.from_generator(
    lambda: ((X[0, :size], 0) for size in (1, 2, 3)),
    output_signature=(tf.TensorSpec((None,), tf.float32), tf.TensorSpec((), tf.int32)),
)


def unknown_rank(x, y):
    return tf.numpy_function(lambda x: x, [x], tf.float32), y


def ragged(x, y):
    return tf.RaggedTensor.from_row_lengths(x, [1, 2]), y


def text_labels(x, y):
    return x, tf.strings.as_string(y)


def taken(source, batch_size, count, seed=0):
    return [
        tf.nest.map_structure(np.asarray, batch)
        for batch in source.stream(batch_size, seed).take(count)
    ]


@pytest.mark.parametrize(
    "x", [(X, Y), (DATASET, None), (DATASET.batch(3), None)], ids=["arrays", "dataset", "batched"]
)
def test_the_stream_is_endless_in_whole_batches_of_each_pass(x):
    source = streams.training_source(*x, inputs=lambda: {"x": (3,)})
    assert source.examples == 10
    got = taken(source, 4, 25)
    assert all(labels.shape == (4,) for _, labels in got)
    labels = np.concatenate([labels for _, labels in got]).reshape(10, 10)
    assert all(sorted(one_pass) == list(range(10)) for one_pass in labels)
    assert len({tuple(one_pass) for one_pass in labels}) > 5
    assert all(np.array_equal(x[:, 0], y.astype("float32")) for x, y in got)


def test_the_same_seed_gives_the_same_order():
    source = streams.training_source(X, Y)
    first, second, other = (
        np.concatenate([y for _, y in taken(source, 5, 8, seed)]) for seed in (1, 1, 2)
    )
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
    assert (
        streams.training_source(DATASET).fingerprint()
        == streams.training_source(DATASET.map(lambda *e: e)).fingerprint()
    )


@pytest.mark.parametrize(
    "data", [(X, Y), DATASET, DATASET.batch(7)], ids=["arrays", "examples", "batches"]
)
def test_validation_keeps_its_order_and_its_last_partial_batch(data):
    spec = (tf.TensorSpec((3,)), tf.TensorSpec(()))
    read, facts = validation.held_out_batches(data, 4, element_spec=spec)
    got = list(read)
    assert facts == {"examples": len(Y), "checksum": pairs(data)}
    assert np.array_equal(np.concatenate([y for _, y in got]), Y)
    assert got[0][0].shape.rank == 2


def pairs(data):
    return validation.prepare(X, Y, validation_data=data).pairs


def test_validation_pairs_tell_inputs_and_their_labels_apart():
    known = pairs((X, Y))
    assert pairs((X[::-1], Y[::-1])) == known
    assert pairs((X + 1, Y)) != known
    assert pairs((X, np.roll(Y, 1))) != known
    assert pairs(DATASET) == pairs(DATASET.batch(7)) != pairs(DATASET.map(lambda x, y: (x + 1, y)))


def test_validation_that_draws_or_shuffles_has_no_checksum():
    draw = np.random.default_rng(0).random  # a global seed would make TensorFlow draw the same

    def drawn(x, y):
        noise = tf.ensure_shape(tf.numpy_function(lambda: np.float32(draw()), [], tf.float32), ())
        return x + noise, y

    noisy = DATASET.map(drawn)
    assert pairs(noisy) is None
    assert pairs(DATASET.shuffle(10)) is None


@pytest.mark.parametrize(
    "share", [0.3, np.float32(0.3), np.array(0.3), np.array(0.3, "float32")], ids=repr
)
def test_a_split_takes_the_last_examples_as_keras_does(share):
    data = validation.prepare(X, Y, validation_split=share)
    assert data.training.examples == 7
    assert list(data.labels()) == [7, 8, 9]


@pytest.mark.parametrize("size", [3, np.int64(3), np.array(3)], ids=repr)
def test_numbers_may_be_numpys(size):
    data = validation.prepare(X, Y, validation_data=VALIDATION, validation_batch_size=size)
    assert [len(labels) for _, labels in data.validation.as_numpy_iterator()] == [3, 1]


def test_lists_tuples_and_dicts_are_taken_alike():
    a, b = X, X[:, :2]
    wanted = None
    for x in ([a, b], (a, b)):
        data = validation.prepare(
            x, [Y, Y], [np.ones(10), np.ones(10)], validation_data=[x, [Y, Y]]
        )
        element = next(iter(data.training.stream(4, 0)))
        assert [part.shape for part in tf.nest.flatten(element[:2])] == [(4, 3), (4, 2), (4,), (4,)]
        assert data.training.element_spec[0] == next(
            iter(data.validation.unbatch().take(1).element_spec[:1])
        )
        assert data.fingerprint == (wanted or data.fingerprint)
        wanted = data.fingerprint


@pytest.mark.parametrize("kind", ["dataset", "pydataset"])
def test_validation_is_kept_in_memory_only_where_it_fits(kind, monkeypatch):
    log = []

    def note(y):
        log.append(int(y))
        return y

    def noting(x, y):
        return x, tf.ensure_shape(tf.numpy_function(note, [y], tf.int32), ())

    dataset = DATASET.map(noting)
    if kind == "pydataset":
        monkeypatch.setattr(
            Two, "note", lambda self, index: log.extend(Y[5 * index : 5 * index + 5])
        )
        dataset = Two()
    kept = validation.prepare(X, Y, validation_data=dataset)
    assert sorted(kept.labels()) == list(range(10))
    read = len(log)
    assert sorted(kept.labels()) == list(range(10))
    assert (len(log), kept.remarks) == (read, ())
    monkeypatch.setattr(validation, "VALIDATION_CACHE_BYTES", 10)
    anew = validation.prepare(X, Y, validation_data=dataset)
    assert any("read anew at each mark" in remark for remark in anew.remarks)
    read = len(log)
    assert sorted(anew.labels()) == list(range(10))
    assert len(log) == read + 10


class Two(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def note(self, index):
        pass

    def __getitem__(self, index):
        self.note(index)
        return X[5 * index : 5 * index + 5], Y[5 * index : 5 * index + 5]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x": X, "y": Y}, "something to validate on"),
        ({"x": DATASET, "validation_split": 0.2}, "must come with arrays"),
        ({"x": X, "y": Y, "validation_split": 1.5}, "between 0 and 1"),
        ({"x": X, "validation_data": VALIDATION}, "Labels must come"),
        ({"x": X, "y": Y[:5], "validation_data": VALIDATION}, "same number"),
        ({"x": X[:0], "y": Y[:0], "validation_data": VALIDATION}, "must hold examples"),
        ({"x": DATASET.repeat(), "validation_data": VALIDATION}, "must end after one pass"),
        ({"x": DATASET.filter(lambda x, y: y > 10), "validation_data": VALIDATION}, "0 examples"),
        ({"x": DATASET.map(unknown_rank), "validation_data": VALIDATION}, "tf.ensure_shape"),
        ({"x": DATASET.map(ragged), "validation_data": VALIDATION}, "dense tensors"),
        ({"x": DATASET, "y": Y, "validation_data": VALIDATION}, "labels and weights itself"),
        ({"x": DATASET.map(lambda x, y: x), "validation_data": VALIDATION}, "must be \\(x, y\\)"),
        ({"x": [[1.0], [2.0]], "y": Y[:2], "validation_data": VALIDATION}, "must be arrays"),
        ({"x": (i for i in X), "y": Y, "validation_data": VALIDATION}, "must be arrays"),
        ({"x": X, "y": Y, "validation_data": X}, "must be \\(x, y\\)"),
        ({"x": X, "y": Y, "validation_data": (X, None)}, "Labels must come"),
        (
            {"x": X, "y": Y, "validation_data": DATASET.take(0)},
            "Validation data must hold examples",
        ),
        ({"x": X, "y": Y, "validation_data": (X[:0], Y[:0])}, "must hold examples"),
        ({"x": X, "y": Y, "validation_data": DATASET.map(unknown_rank)}, "tf.ensure_shape"),
        ({"x": X, "y": Y, "validation_data": UNEVEN}, "padded_batch"),
        ({"x": X, "y": Y.astype(str), "validation_data": VALIDATION}, "Labels must be numbers"),
        ({"x": DATASET.map(text_labels), "validation_data": VALIDATION}, "Labels must be numbers"),
        (
            {"x": X, "y": Y, "validation_data": (X, Y.astype(object).astype(str))},
            "Labels must be numbers",
        ),
        ({"x": X.astype(object), "y": Y, "validation_data": VALIDATION}, "numbers or text.*astype"),
        ({"x": X, "y": Y, "validation_split": "a fifth"}, "between 0 and 1"),
        (
            {"x": X, "y": Y, "validation_data": VALIDATION, "validation_batch_size": 2.5},
            "whole number",
        ),
    ],
)
def test_what_cannot_be_streamed_is_refused(arguments, text):
    with pytest.raises(DataError, match=text):
        validation.prepare(**arguments)


def test_examples_are_weighed_once(points):
    from kbatch.training.arguments import FitArguments

    (x, y), validation = points
    twice = FitArguments(
        x, y, np.ones(len(x)), validation_data=validation, class_weight={0: 1.0, 1: 2.0}
    )
    with pytest.raises(DataError, match=r"weighed once.*Multiply them into sample_weight"):
        twice.data()
