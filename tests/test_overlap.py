"""The overlap of training and validation data, against a count by hand."""

import numpy as np
import pytest
import short_searches
import tensorflow as tf

from kbatch.data.batches import prepare
from kbatch.data.overlap import AT_ONCE, LOOKED_AT, of_fit, overlap
from kbatch.results.loading import load_records

RNG = np.random.default_rng(0)


def images(count, dtype):
    return (255 * RNG.random((count, 6, 6, 3))).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int64"])
def test_copies_are_counted_whatever_their_order(dtype):
    x = images(50, dtype)
    mixed = np.concatenate([x[[7, 3, 40]], images(17, dtype)])
    assert overlap(x, mixed) == (3, 20)
    assert overlap(x, images(20, dtype)) == (0, 20)


def test_a_copy_of_another_float_type_is_a_copy():
    x = RNG.normal(size=(30, 4)).astype("float32")
    assert overlap(x, x[:10].astype("float64")) == (10, 10)


def test_inputs_that_differ_in_one_value_are_no_copies():
    x = images(30, "uint8")
    other = x.copy()
    other[:, 2, 5, 1] += 1  # a value that the first look leaves out or not
    for place in range(108):
        other = x.copy()
        other.reshape(30, -1)[:, place] += 1
        assert overlap(x, other) == (0, 30)


def test_dicts_tuples_and_text_are_read():
    words = np.array([f"word {number}" for number in range(40)])
    x = {"text": words, "number": np.arange(40.0)}
    other = {"text": words[30:], "number": np.arange(30.0, 40.0)}
    assert overlap(x, other) == (10, 10)
    other["number"] = other["number"] + 1
    assert overlap(x, other) == (0, 10)
    assert overlap((words, words), (words[:4], words[:4])) == (4, 4)


def test_examples_that_agree_by_chance_are_unknown():
    bits = RNG.integers(0, 2, (300, 3))
    assert overlap(bits, bits[:100]) is None
    assert overlap(bits, RNG.normal(size=(10, 4))) is None


def test_many_examples_are_read_in_parts():
    x = RNG.normal(size=(AT_ONCE + 10, 2))
    assert overlap(x, x[-3000:]) == (LOOKED_AT, LOOKED_AT)


def test_a_dataset_is_known_to_be_itself_only():
    dataset = tf.data.Dataset.from_tensor_slices((images(4, "float32"), [0, 1, 0, 1]))
    assert of_fit(dataset, dataset, 4) == (4, 4)
    assert of_fit(dataset, dataset.take(2), 4) is None
    assert of_fit(images(4, "uint8"), dataset, 4) is None


def test_the_data_of_a_fit_know_their_overlap():
    x, y = images(40, "float32"), np.arange(40) % 2
    assert prepare(x, y, validation_data=(x[:8], y[:8])).overlap() == (8, 8)
    assert prepare(x, y, validation_split=0.25).overlap() == (0, 10)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    assert prepare(dataset, validation_data=dataset).overlap() == (40, 40)
    assert prepare(dataset, validation_data=dataset.take(5)).overlap() is None


def test_a_search_tells_once_of_shared_examples(points, tmp_path):
    (x, y), _ = points
    tuner = short_searches.tuner_of(tmp_path, max_trials=1)
    short_searches.search(tuner, ((x, y), (x[:200], y[:200])))
    told = [" ".join(record.outcome.remarks) for record in load_records(tuner)]
    words = "200 of 200 validation examples that were looked at are training examples too"
    assert [words in remarks for remarks in told] == [True, False]
