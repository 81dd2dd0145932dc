"""Pipelines: no thread tunes them, whose end each iterator's drop would wait for."""

import os

import numpy as np
import pytest
import tensorflow as tf

from kbatch.data.pipeline import untuned
from kbatch.data.streams import training_source
from kbatch.data.validation import held_out_batches

X = np.arange(64, dtype="float32").reshape(32, 2)
Y = np.arange(32, dtype="int32")
AUTOTUNE = tf.data.AUTOTUNE
CUTS = tf.data.Dataset.from_tensors((np.int64(0), np.int64(4)))


def dataset():
    whole = tf.data.Dataset.from_tensor_slices((X, Y))
    return whole.map(lambda x, y: (x + 1, y), AUTOTUNE).batch(4).prefetch(AUTOTUNE)


def source():
    return training_source(dataset(), batched=True)


def held_out(data, **facts):
    batches, _ = held_out_batches(data, **facts)
    return batches


PIPELINES = {
    "arrays": lambda: training_source(X, Y).stream(4, 0),
    "arrays, cut": lambda: training_source(X, Y).cut(CUTS, 0),
    "dataset": lambda: source().stream(4, 0),
    "dataset, unshuffled": lambda: source().unshuffled(4),
    "validation arrays": lambda: held_out((X, Y)),
    "validation dataset": lambda: held_out(dataset(), element_spec=source().element_spec),
}


@pytest.mark.parametrize("kind", PIPELINES)
def test_no_thread_tunes_what_kbatch_reads(kind):
    options = PIPELINES[kind]().options()
    assert options.autotune.enabled is False


def test_calls_left_to_tensorflow_get_one_a_core():
    assert untuned(dataset()).options().autotune.initial_parallelism == os.cpu_count()


def test_tuning_that_the_user_asks_for_stays():
    asked = tf.data.Options()
    asked.autotune.enabled = True
    kept = training_source(dataset().with_options(asked), batched=True).stream(4, 0)
    assert kept.options().autotune.enabled is True


def test_an_untuned_dataset_has_the_same_elements():
    expected = list(dataset().as_numpy_iterator())
    found = list(untuned(dataset()).as_numpy_iterator())
    for (x, y), (other_x, other_y) in zip(expected, found, strict=True):
        np.testing.assert_array_equal(x, other_x)
        np.testing.assert_array_equal(y, other_y)
