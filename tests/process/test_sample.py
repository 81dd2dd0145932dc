"""A few examples of the data that travel to a worker: of the longest shape and strings."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch.errors import DataError, MemoryLimitError
from kbatch.memory import _workload, estimate
from kbatch.memory._find import lower_size
from kbatch.memory._workload import ROWS, Workload, check_size, longest_of, sample_of, surveyed
from kbatch.model_spec import ModelSpec

X, Y = np.arange(240, dtype="float32").reshape(40, 6), np.arange(40, dtype="int32")
EXAMPLES = tf.data.Dataset.from_tensor_slices((X, Y))


class EqualBatches(keras.utils.PyDataset):
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
        (X, 40),
        (EXAMPLES, 40),
        (EXAMPLES.batch(16), 40),
        (EXAMPLES.batch(16, drop_remainder=True), 32),
        (EXAMPLES.padded_batch(16).cache().prefetch(2), 40),
        (EXAMPLES.shuffle(1).batch(16).map(lambda a, b: (a, b)).repeat(), 40),
        (EXAMPLES.batch(8).take(2), 16),
        (EXAMPLES.batch(8).unbatch(), None),
        (EXAMPLES.filter(lambda a, b: True).batch(8), None),
        (EqualBatches(), 33),  # at least: the last of three may hold a single one
    ],
)
def test_batches_are_told_from_examples(data, examples):
    sample, count = sample_of(data, Y if data is X else None)
    assert [part.shape for part in sample] == [(ROWS, 6), (ROWS,)]
    np.testing.assert_array_equal(sample[0], X[:ROWS])
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


LENGTHS = [3, 5, 4, 2, 6, 3, 17, 5]  # the longest is in the last batches


def texts(lengths=LENGTHS):
    """Single examples of different lengths, each with a label for each word."""

    def examples():
        for length in lengths:
            yield np.ones(length, "int32"), np.ones(length, "int32")

    spec = tf.TensorSpec((None,), tf.int32)
    return tf.data.Dataset.from_generator(examples, output_signature=(spec, spec))


def single(lengths=LENGTHS):
    """Single examples with a label each."""
    return texts(lengths).map(lambda x, y: (x, 1))


def padded():
    return texts().padded_batch(2)


def ragged():
    batches = texts().ragged_batch(2)
    return batches.map(lambda x, y: (x.to_tensor(), y.to_tensor()))


def bucketed():
    return texts().bucket_by_sequence_length(
        lambda x, y: tf.size(x), bucket_boundaries=[5, 10], bucket_batch_sizes=[2, 2, 1]
    )


def mapped():
    """A dataset that forgets its sizes, though all examples have the same."""

    def forget(part):
        return tf.ensure_shape(tf.py_function(lambda it: it, [part], part.dtype), (None, None))

    arrays = np.ones((8, 17)), np.ones((8, 17))
    batches = tf.data.Dataset.from_tensor_slices(arrays).batch(4)
    return batches.map(lambda x, y: (forget(x), forget(y)))


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        length = max(LENGTHS[2 * index : 2 * index + 2])
        return np.ones((2, length), "int32"), np.ones((2, length), "int32")


def py_dataset():
    return Batches()


@pytest.mark.parametrize(
    "make", [padded, ragged, bucketed, mapped, py_dataset], ids=lambda make: make.__name__
)
def test_the_longest_of_all_examples_is_taken(make):
    (x, y), _, at = surveyed(make(), None, None)
    assert x.shape[1:] == y.shape[1:] == (17,)
    assert at == "the longest shape (17,)"


def test_data_of_one_shape_are_not_surveyed():
    arrays = np.ones((8, 17)), np.ones(8)
    fixed = tf.data.Dataset.from_tensor_slices(arrays).batch(4)
    for data in ((fixed, None), arrays, ((17,), None), (None, None)):
        sample, count, at = surveyed(*data, None)
        expected, expected_count = sample_of(*data)
        assert at == ""
        assert count == expected_count
        for one, other in zip(sample, expected, strict=True):
            assert np.array_equal(one, other)


def named_inputs():
    """Two inputs with three open sizes; no example has all of the largest."""
    sizes = [((4, 9), 2), ((8, 3), 5), ((6, 6), 7)]

    def batches():
        for (height, width), length in sizes:
            yield {"scan": np.ones((2, height, width)), "note": np.ones((2, length))}, np.ones(2)

    return tf.data.Dataset.from_generator(
        batches,
        output_signature=(
            {
                "scan": tf.TensorSpec((None, None, None), tf.float64),
                "note": tf.TensorSpec((None, None), tf.float64),
            },
            tf.TensorSpec((None,), tf.float64),
        ),
    )


def test_of_several_sizes_the_largest_of_each_is_taken():
    (x, _), _, at = surveyed(named_inputs(), None, None)
    assert (x["scan"].shape[1:], x["note"].shape[1:]) == ((8, 9), (7,))
    assert at.startswith("the largest of each size, ")
    assert "scan (8, 9)" in at
    assert "note (7,)" in at


def test_a_named_shape_takes_its_place_and_labels_follow():
    (x, y), _, at = surveyed(padded(), None, (512,))
    assert (x.shape[1:], y.shape[1:], at) == ((512,), (512,), "shape (512,)")
    (x, y), _, _ = surveyed(padded(), None, (4,))
    assert x.shape[1:] == y.shape[1:] == (4,)
    (x,), _, at = surveyed(None, None, (512,))
    assert (x.shape[1:], at) == ((512,), "shape (512,)")
    named = {"note": (30,), "scan": (20, 10)}
    (x, y), _, at = surveyed(named_inputs(), None, named)
    assert (x["scan"].shape[1:], x["note"].shape[1:], y.shape[1:]) == ((20, 10), (30,), ())
    (x, y), _, _ = surveyed(np.ones((8, 17)), np.ones((8, 1)), [9])
    assert (x.shape[1:], y.shape[1:]) == ((9,), (1,))


@pytest.mark.parametrize("shape", [(512, 3), 512, (0,), {"a": (5,)}, ((5,), (5,)), (True,), "5"])
def test_a_shape_of_another_kind_is_refused(shape):
    with pytest.raises(DataError, match=r"`shape` must be .* nested as `x` is: \(17,\)"):
        surveyed(padded(), None, shape)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (single, "must have the same shape"),
        (lambda: single([3] * 20 + [9]), r"same shape. Received: examples of up to \(9,\)"),
        (lambda: texts().ragged_batch(2), "must hold dense tensors"),
    ],
)
def test_what_cannot_be_batched_is_refused(data, says):
    with pytest.raises(DataError, match=says):
        surveyed(data(), None, None)


def test_a_survey_ends_and_says_what_it_saw(monkeypatch):
    endless = padded().repeat()
    monkeypatch.setattr(_workload, "ELEMENTS", 3)
    assert surveyed(endless, None, None)[2] == "the longest shape (6,) of the first 6 examples"
    ticks = itertools.count()
    monkeypatch.setattr(_workload, "SECONDS", 1)
    found = longest_of(endless, sample_of(endless)[0], clock=lambda: float(next(ticks)))
    assert found.words == "the longest shape (5,) of the first 4 examples"


def reader():
    """A label for each word of texts of any length."""
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Dense(16, "relu")(keras.layers.Embedding(20, 8)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(3, "softmax")(x))
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def test_an_estimate_is_that_of_the_longest_shape():
    found = estimate(reader, padded(), batch_size=8)
    at_17 = estimate(reader, (17,), batch_size=8)
    assert (found.activations, found.total) == (at_17.activations, at_17.total)
    assert str(found).endswith("at batch 8 and the longest shape (17,)")
    assert found.total > estimate(reader, padded(), batch_size=8, shape=(5,)).total


SHORT, LONG = "a b", " ".join("abcdefghij"[:7] for _ in range(9))
MANY = " ".join("x" for _ in range(12))
TEXTS = np.array([SHORT] * 20 + [MANY, LONG] + [SHORT] * 20)
LABELS = np.arange(len(TEXTS)) % 2


class TextBatches(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        rows = slice(8 * index, 8 * index + 8)
        return TEXTS[rows], LABELS[rows]


STRINGS = {
    "arrays": lambda: (TEXTS, LABELS),
    "objects": lambda: (TEXTS.astype(object)[:, None], LABELS),
    "a dict": lambda: ({"text": TEXTS, "age": np.ones(len(TEXTS), "float32")}, LABELS),
    "examples": lambda: (tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)), None),
    "batches": lambda: (tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).batch(8), None),
    "PyDataset": lambda: (TextBatches(), None),
}


@pytest.mark.parametrize("kind", STRINGS)
def test_the_longest_strings_are_among_the_examples(kind):
    (x, y), _, at = surveyed(*STRINGS[kind](), None)
    text = x["text"] if isinstance(x, dict) else x
    first = [each.decode() if isinstance(each, bytes) else str(each) for each in text.ravel()[:2]]
    assert first == [MANY, LONG]
    assert list(y[:2]) == [0, 1]
    assert at == f"the longest strings (12 words, {len(LONG)} characters)"


def test_missing_strings_count_as_empty():
    texts = np.array([None, "a b c", float("nan"), "a"], object)
    x, _ = surveyed(texts, np.zeros(4), None)[0]
    assert x[0] == "a b c"


def test_answers_for_longer_strings_are_kept_apart():
    shapes = [
        Workload(ModelSpec(reader), surveyed(texts, LABELS[: len(texts)], None)[0]).shapes
        for texts in (TEXTS, TEXTS[:20])
    ]
    assert shapes[0] != shapes[1]


def counter():
    """A model that splits its texts into words."""
    vocabulary = [*"abcdefghij", "x"]
    inputs = keras.Input((), dtype="string")
    words = keras.layers.TextVectorization(vocabulary=vocabulary)(inputs)
    x = keras.layers.Embedding(20, 2048)(words)
    x = keras.layers.Dense(2, "softmax")(keras.layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, x)
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def test_the_largest_batch_is_that_of_the_longest_strings():
    def largest(texts):
        labels = np.arange(len(texts)) % 2
        limits = {"memory_limit": "200MB", "ceiling": 64}
        return kbatch.find_max_batch(counter, texts, labels, **limits)

    at_the_end = np.array(["x"] * 40 + [" ".join("x" * 1000)])
    everywhere = np.array([" ".join("x" * 1000)] * 41)
    found, expected = largest(at_the_end), largest(everywhere)
    assert found.batch_size == expected.batch_size < 64
    assert "the longest strings (1,000 words" in str(found)


def test_whole_numbers_of_any_kind_are_taken():
    assert [check_size("ceiling", size) for size in (None, 1, np.int64(8))] == [None, 1, 8]


@pytest.mark.parametrize("size", [0, -1, 1.5, "8", True])
def test_other_sizes_are_refused_by_name(size):
    with pytest.raises(MemoryLimitError, match="`ceiling` must be a whole number of at least 1"):
        check_size("ceiling", size)


def test_a_missing_bound_bounds_nothing():
    assert [lower_size(3, 5), lower_size(None, 5), lower_size(3, None), lower_size(None, None)] == [
        3,
        5,
        3,
        None,
    ]
