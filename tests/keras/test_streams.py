"""Streams: the order of arrays, datasets read anew in each pass, and how little is read ahead."""

import json
import time
import zlib
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbatch.data import datasets, streams, validation
from kbatch.errors import DataError

X = np.arange(10, dtype="float32")[:, None] * np.ones((1, 3), "float32")
Y = np.arange(10, dtype="int32")
DATASET = tf.data.Dataset.from_tensor_slices((X, Y))
OLD_PROJECT = (
    Path(__file__).resolve().parents[3]
    / "shared"
    / "data"
    / "old-project"
    / "search"
    / "kbatch"
    / "project.json"
)


def labels_of(dataset, count):
    return [
        label for _, labels in dataset.take(count).as_numpy_iterator() for label in labels.tolist()
    ]


def reading(count, log, shape=(3,)):
    """A dataset of single examples that notes which of them was read, one at a time."""

    def generate():
        for number in range(count):
            log.append(number)
            yield np.full(shape, number, "float32"), number

    specs = (tf.TensorSpec(shape, tf.float32), tf.TensorSpec((), tf.int32))
    return tf.data.Dataset.from_generator(generate, output_signature=specs).apply(
        tf.data.experimental.assert_cardinality(count)
    )


def text(lengths):
    """Sequences of their own number, of these lengths."""
    specs = (tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.int32))
    return tf.data.Dataset.from_generator(
        lambda: ((np.full(n, i + 1), i) for i, n in enumerate(lengths)), output_signature=specs
    )


@pytest.mark.parametrize("batch_size", [1, 3, 4, 10])
def test_arrays_come_once_a_pass_in_the_order_of_the_seed(batch_size):
    source = streams.training_source(X, Y)
    order = labels_of(source.stream(batch_size, 5), 120 // batch_size)
    passes = [tuple(order[start : start + 10]) for start in range(0, 120, 10)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len(set(passes)) > 8
    stream = source.stream(4, 5)
    assert labels_of(stream, 7)
    # neither the batch size nor what was read before changes it
    assert labels_of(stream, 30) == order
    assert labels_of(source.stream(batch_size, 6), 120 // batch_size) != order


def test_floats_come_as_keras_takes_them_and_text_stays_text():
    x, _ = next(
        iter(
            streams.training_source({"a": X.astype("float64"), "b": Y.astype(str)}, Y).stream(2, 0)
        )
    )
    assert x["a"].dtype == keras.config.floatx()
    assert x["b"].dtype == tf.string


def test_checksums_of_numbers_are_those_of_older_projects():
    x, y = (
        {"a": X.astype("float64"), "b": np.arange(3000, dtype="uint8").reshape(10, 300)},
        (Y, Y % 2 == 0),
    )
    found = streams.training_source(x, y).fingerprint()
    assert found["checksum"] == zlib.crc32(
        b"".join(array.tobytes() for array in (x["a"], x["b"], *y))
    )
    assert found["shapes"] == [[3, "float64"], [300, "uint8"], ["int32"], ["bool"]]


@pytest.mark.slow
def test_the_old_project_knows_its_data_again():
    if not OLD_PROJECT.exists():
        pytest.skip(f"no project at {OLD_PROJECT}")
    from kbatch.data.case_study import pictures

    found = pictures("drawn", 64)
    data = validation.prepare(*found.train, validation_data=found.validation)
    assert data.fingerprint == json.loads(OLD_PROJECT.read_text())["data"]


@pytest.mark.parametrize("kind", [object, "U", "S"])
def test_the_checksum_of_text_is_that_of_its_contents(kind):
    def of(*words):
        return streams.training_source(
            np.array([f"{word}!" for word in words]).astype(kind), Y[:3]
        ).fingerprint()["checksum"]

    assert of("a", "bb", "c") == of("a", "bb", "c")
    assert len({of("a", "bb", "c"), of("a", "b", "bc"), of("ab", "b", "c")}) == 3


def test_a_datasets_augmentation_is_drawn_anew_in_each_pass():
    draws = tf.random.Generator.from_non_deterministic_state()  # whatever seed another test has set
    drawn = DATASET.map(lambda x, y: (x + draws.uniform(()), y))
    for dataset in (drawn, drawn.batch(5)):
        source = streams.training_source(dataset, inputs=lambda: {"x": (3,)})
        taken = source.stream(10, 0).take(4).as_numpy_iterator()
        versions = Counter(
            (int(label), float(x[0]))
            for xs, labels in taken
            for x, label in zip(xs, labels, strict=True)
        )
        assert len(versions) == 40
        assert source.fingerprint()["checksum"] is None


def test_a_cache_of_the_users_is_filled_once_before_training():
    log = []
    source = streams.training_source(reading(10, log).cache().map(lambda x, y: (x, y)))
    assert len(log) == 10
    source.fingerprint()
    assert sorted(labels_of(source.stream(5, 0), 6)) == sorted(3 * list(range(10)))
    assert len(log) == 10


def test_a_dataset_without_a_cache_is_not_read_beforehand():
    log = []
    streams.training_source(reading(10, log))
    assert not log


def test_little_of_a_dataset_is_read_ahead():
    log = []
    taken, size, buffer = 0, 5, 100
    for _ in streams.training_source(reading(100, log)).stream(size, 0):
        taken += size
        time.sleep(0.02)  # a pause, in which buffers fill
        # One is read for each that is taken, also over the end of a pass: no batch comes for
        # nothing, none waits for a whole buffer.
        assert abs(len(log) - taken - buffer) <= 3 * size
        if taken == 250:
            break


def test_the_shuffle_buffer_is_cut_by_examples_and_by_bytes(monkeypatch):
    assert streams.training_source(DATASET).remarks == ()
    monkeypatch.setattr(datasets, "SHUFFLED_BYTES", 4 * (3 * 4 + 4))
    log = []
    source = streams.training_source(reading(10, log))
    assert any("the shuffle buffer holds 4 of 10 examples" in remark for remark in source.remarks)
    next(iter(source.stream(1, 0)))
    assert len(log) < 10
    assert streams.training_source(DATASET.shuffle(10)).remarks == ()  # the user shuffles
    monkeypatch.setattr(datasets, "SHUFFLED_BYTES", 1 << 20)
    monkeypatch.setattr(datasets, "SHUFFLED_EXAMPLES", 3)
    assert any(
        "the shuffle buffer holds 3 of 10 examples" in remark
        for remark in streams.training_source(DATASET).remarks
    )


def test_unknown_cardinality_is_counted_with_a_remark():
    for dataset, inputs in (
        (DATASET.filter(lambda x, y: y > 3), None),
        (DATASET.batch(4).filter(lambda x, y: y[0] > 3), {"x": (3,)}),
    ):
        source = streams.training_source(dataset, inputs=lambda inputs=inputs: inputs)
        assert source.examples == 6
        assert any("6 were counted" in remark for remark in source.remarks)
    source = streams.training_source(DATASET.batch(4), batched=True)
    assert (source.examples, source.remarks) == (10, ())


@pytest.mark.parametrize("pad", [0, 7])
def test_padded_batches_are_batched_again_with_the_same_padding(pad):
    lengths = [3, 5, 2, 9, 4, 6]
    dataset = text(lengths).padded_batch(2, padding_values=(pad, 0)).cache().prefetch(1)
    source = streams.training_source(dataset, inputs=lambda: {"tokens": (None,)})
    assert source.examples == 6
    assert any("padded to its longest" in remark for remark in source.remarks)
    for tokens, labels in source.stream(3, 0).take(6).as_numpy_iterator():
        for row, label in zip(tokens, labels, strict=True):
            assert row[: lengths[label]].tolist() == lengths[label] * [label + 1]
            assert set(row[lengths[label] :].tolist()) <= {pad}


def test_what_was_padded_nobody_knows_how_is_refused():
    for dataset in (text([3, 5, 2]).padded_batch(2).map(lambda x, y: (x + 1, y)), text([3, 5, 2])):
        with pytest.raises(DataError, match="padded_batch"):
            streams.training_source(dataset, inputs=lambda: {"tokens": (None,)})
    # of one length, though the dataset does not know
    assert streams.training_source(text([4, 4, 4])).examples == 3


def test_a_dataset_without_a_fixed_order_has_no_checksum():
    loose = tf.data.Options()
    loose.deterministic = False
    fixed = streams.training_source(DATASET).fingerprint()["checksum"]
    assert fixed is not None
    parallel = DATASET.map(lambda x, y: (x, y), num_parallel_calls=2, deterministic=False)
    for dataset in (
        DATASET.with_options(loose),
        parallel,
        DATASET.shuffle(10),
        DATASET.shuffle(10).prefetch(2),
    ):
        assert streams.training_source(dataset).fingerprint()["checksum"] is None


def test_tensorflow_still_tells_what_a_dataset_is_made_of():
    assert datasets.is_cached(DATASET.cache().batch(2).prefetch(1))
    assert datasets.is_shuffled(DATASET.shuffle(2).batch(2))
    assert not datasets.is_cached(DATASET.batch(2))
    assert not datasets.is_shuffled(DATASET.batch(2))
    kept = (
        DATASET.padded_batch(2, padding_values=(7.0, -1))
        .shuffle(2)
        .take(3)
        .skip(1)
        .cache()
        .with_options(tf.data.Options())
        .prefetch(1)
    )
    assert [
        int(value)
        for value in datasets.padding_values(kept.apply(tf.data.experimental.assert_cardinality(2)))
    ] == [7, -1]
    assert datasets.padding_values(kept.map(lambda x, y: (x, y))) is None


@pytest.mark.parametrize(
    ("x", "y", "inputs", "batched"),
    [
        ((3,), (), None, False),
        ((None, 3), (None,), {"x": (3,)}, True),
        ((5, 3), (5,), {"x": (3,)}, True),
        ((3,), (3,), {"x": (3,)}, False),  # an autoencoder's
        ((10,), (4,), None, False),  # one-hot labels
        ((None,), (None,), {"x": (None,)}, False),  # text and one label for each word
        ((None, None), (None, None), {"x": (None,)}, True),
        ((None,), (None,), {"x": (1,)}, True),  # Keras adds the last dimension
        ((8, 8, 1), (8,), {"x": (8, 8)}, False),  # Keras takes the last dimension away
        ((None, 8, 8, 1), (None,), {"x": (8, 8)}, True),
        ((None, None, None, 3), (None,), {"x": (64, 64, 3)}, True),
        ((None, None, 3), (None,), {"x": (64, 64, 3)}, False),
    ],
)
def test_batches_are_recognised_by_labels_or_model_inputs(x, y, inputs, batched):
    element = (tf.TensorSpec(x, tf.float32), tf.TensorSpec(y, tf.float32))
    assert streams.are_batches(element, lambda: inputs) is batched


def test_inputs_of_a_dict_are_found_by_name():
    element = (
        {
            "events": tf.TensorSpec((None, 5)),
            "picture": tf.TensorSpec((None, 8, 8)),
            "unused": tf.TensorSpec((None,)),
        },
        tf.TensorSpec((None,)),
    )
    assert streams.are_batches(element, lambda: {"picture": (8, 8), "events": (5,)})
    element = (
        {"events": tf.TensorSpec((None, 5)), "picture": tf.TensorSpec((None, 8))},
        tf.TensorSpec((None, 1)),
    )
    assert not streams.are_batches(element, lambda: {"picture": (None, 8), "events": (None, 5)})


@pytest.mark.parametrize("x", [(None, 3), (5, 3)])
def test_what_neither_labels_nor_model_tell_must_be_said(x):
    element = (tf.TensorSpec(x, tf.float32), tf.TensorSpec(x[:1], tf.float32))
    with pytest.raises(DataError, match="batched=True or batched=False"):
        streams.are_batches(element)
    dataset = DATASET.batch(5, drop_remainder=x[0] == 5)
    assert streams.training_source(dataset, batched=True).examples == 10
    assert streams.training_source(dataset, batched=False).examples == 2


class Squares(keras.utils.PyDataset):
    """Ten examples in batches of three; each epoch adds one to all of them."""

    def __init__(self, workers=1, weights=None):
        super().__init__(workers=workers)
        self.epochs, self.asked, self.weights = 0, [], weights

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.asked.append(index)
        rows = slice(3 * index, 3 * index + 3)
        return {"a": [X[rows].astype("float64")], "b": Y[rows] + self.epochs}, Y[rows], self.weights

    def on_epoch_end(self):
        self.epochs += 1


@pytest.mark.parametrize("workers", [1, 3])
def test_a_pydataset_is_read_by_batches_and_told_of_epochs(workers):
    squares = Squares(workers)
    source = streams.training_source(squares)
    assert source.examples == 10
    began = squares.epochs
    taken = list(source.stream(5, 0).take(6).as_numpy_iterator())
    assert sorted(label for _, labels in taken for label in labels.tolist()) == sorted(
        3 * list(range(10))
    )
    assert all(
        x["a"][0].dtype == "float32" and np.array_equal(x["a"][0][:, 0], labels)
        for x, labels in taken
    )
    assert {int(shift) for x, labels in taken for shift in x["b"] - labels} == {
        began,
        began + 1,
        began + 2,
    }


def test_a_pydataset_that_cannot_be_read_is_refused():
    class Empty(Squares):
        def __len__(self):
            return 0

    class Alone(Squares):
        def __getitem__(self, index):
            return X

    class Odd(Squares):
        def __getitem__(self, index):
            return (X, Y) if index else (X[:, 0], Y)

    for given, words in (
        (Empty(), "length of at least 1"),
        (Alone(), "must be \\(x, y\\)"),
        (Odd(), "same arrays"),
    ):
        with pytest.raises(DataError, match=words):
            streams.training_source(given)
    with pytest.raises(DataError, match="labels and weights itself"):
        streams.training_source(Squares(), Y)


def test_each_source_says_what_makes_it_faster():
    assert ".cache()" not in streams.training_source(X, Y).remedy
    assert "put `.cache()`" in streams.training_source(DATASET).remedy
    assert "after `.cache()`" in streams.training_source(DATASET.cache()).remedy
    assert "workers" in streams.training_source(Squares()).remedy
