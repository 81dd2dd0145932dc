"""Each private name of this library that kbatch uses is still there and does what kbatch needs."""

import subprocess
import sys

import pytest
import tensorflow as tf

from kbatch.data import pipeline
from kbatch.runtime import tensorflow_private


def test_custom_gradients_are_listed_and_forgotten():
    @tf.custom_gradient
    def twice(x):
        return 2 * x, lambda upstream: 2 * upstream

    before = tensorflow_private.custom_gradients()
    tf.function(twice).get_concrete_function(tf.TensorSpec((), "float32"))
    since = tensorflow_private.custom_gradients() - before
    assert since
    tensorflow_private.forget_custom_gradients(since)
    assert tensorflow_private.custom_gradients() == before


def test_dataset_inputs_lead_to_the_first_dataset():
    source = tf.data.Dataset.range(4)
    assert tensorflow_private.dataset_inputs(source.map(abs)) == [source]
    assert tensorflow_private.dataset_inputs(source) == []
    both = tensorflow_private.dataset_inputs(tf.data.Dataset.zip(source, source))
    assert both == [source, source]


@pytest.mark.parametrize("deterministic", [True, False])
def test_unordered_steps(deterministic):
    numbers = tf.data.Dataset.range(4)
    settings = {"num_parallel_calls": 2, "deterministic": deterministic}
    for step in (numbers.map(abs, **settings), numbers.batch(2, **settings)):
        assert tensorflow_private.is_unordered(step) is not deterministic
    assert not tensorflow_private.is_unordered(numbers)


def test_padding_values_and_names_of_steps():
    rows = tf.data.Dataset.range(3).map(lambda n: tf.range(n))
    padded = rows.padded_batch(3, padding_values=tf.constant(7, "int64"))
    assert int(tensorflow_private.padding_values(padded)) == 7
    assert type(padded).__name__ in pipeline.PADS
    assert type(rows.cache()).__name__ in pipeline.CACHES
    assert type(rows.shuffle(3)).__name__ in pipeline.SHUFFLES
    kept = (rows.take(1), rows.skip(1), rows.prefetch(1), rows.shard(2, 0))
    asserted = rows.apply(tf.data.experimental.assert_cardinality(3))
    with_options = rows.with_options(tf.data.Options())
    for step in (*kept, asserted, with_options):
        assert type(step).__name__ in pipeline.KEEP_ELEMENTS


def test_has_started_tells_the_first_operation():
    code = """
import tensorflow as tf
from kbatch.runtime import tensorflow_private
assert not tensorflow_private.has_started()
tf.constant(1)
assert tensorflow_private.has_started()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_limits_of_the_cpu():
    limits = tensorflow_private.memory_limits("CPU")
    assert len(limits) == 1
    assert limits[0] > 0
    assert tensorflow_private.memory_limits("TPU") == []


def test_a_seed_state_is_put_back_exactly():
    before = tensorflow_private.seed_state()
    assert set(before) <= set(tensorflow_private.SEED_ATTRIBUTES)
    tf.random.set_seed(5)
    tf.random.uniform(())
    state = tensorflow_private.seed_state()
    assert state["_seed"] == 5
    assert "_rng" in state
    tensorflow_private.set_seed_state(before)
    assert tensorflow_private.seed_state() == before
