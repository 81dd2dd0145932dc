"""What a single training measures, on data and models as users bring them."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch import Recipe
from kbatch.data import validation as validation_data
from kbatch.errors import SearchError
from kbatch.records.project import Project
from kbatch.training import run


@pytest.mark.slow
def test_a_longer_validation_does_not_make_room_for_more_updates(points):
    """A pipeline of 4 ms an example fills its buffers in validation; those batches are not free."""
    (x, y), _ = points
    rng = np.random.default_rng(0)
    many = rng.normal(size=(30_000, 12)).astype("float32"), rng.integers(0, 2, 30_000)

    def slow(x, y):
        time.sleep(0.004)
        return x, y

    def one(a, b):
        a, b = tf.numpy_function(slow, [a, b], [tf.float32, tf.int32])
        return tf.ensure_shape(a, (12,)), tf.ensure_shape(b, ())

    pipeline = (
        tf.data.Dataset.from_tensor_slices((x, y)).map(one, num_parallel_calls=1).prefetch(200)
    )
    updates = []
    for count in (64, 30_000):
        validation = many[0][:count], many[1][:count]
        _, outcome = kbatch.train(
            Recipe(batch_size=16), small, pipeline, validation_data=validation, seconds=4.0
        )
        updates.append(outcome.updates)
        assert outcome.examples_per_second <= 1.1 * outcome.input_examples_per_second
    assert abs(updates[1] - updates[0]) <= 0.1 * updates[0]


def small(hp=None):
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dense(1, "sigmoid", dtype="float32"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.parametrize("in_arrays", [True, False])
def test_the_pipeline_of_arrays_is_timed_once(points, tmp_path, in_arrays):
    """A user's dataset may read from its cache after the first pass, so it is timed each time."""
    training, validation = points
    data = training if in_arrays else (tf.data.Dataset.from_tensor_slices(training),)
    space = kbatch.Space(batch_size=(32,))  # as the baseline
    hypermodel = kbatch.HyperModel(small, space, seconds_per_trial=0.2)
    tuner = kbatch.Tuner(hypermodel, directory=tmp_path, max_trials=2)
    tuner.search(*data, validation_data=validation, verbose=0)
    outcomes = [record.outcome for record in Project(tuner.project_dir).store.records()]
    assert len(outcomes) == 3
    speeds = {outcome.input_examples_per_second for outcome in outcomes}
    assert len(speeds) == (1 if in_arrays else 3)


def test_validation_data_that_draw_draw_the_same_at_each_mark(points, monkeypatch):
    monkeypatch.setattr(validation_data, "VALIDATION_CACHE_BYTES", 0)  # as data that take more
    training, (x, y) = points

    def noisy(x, y):
        return x + tf.random.normal((12,), stddev=3.0, seed=1), y

    pairs = tf.data.Dataset.from_tensor_slices((x.astype("float32"), y)).map(noisy).batch(32)
    recipe = Recipe(32, learning_rate=1e-30)
    _, outcome = kbatch.train(recipe, small, *training, validation_data=pairs, seconds=0.3)
    assert len({value for _, value in outcome.curve}) == 1


def test_an_example_that_overflows_in_float16_is_skipped(points):
    """Keras' loss scaling skips such an update, and the trial goes on.

    Its running mean of the loss would stay NaN for the pass.
    """
    (x, y), validation = points
    x = x.copy()
    x[7] = 1e5  # more than float16 holds
    recipe = Recipe(batch_size=32, policy="mixed_float16")
    _, outcome = kbatch.train(recipe, small, x, y, validation, seconds=0.5)
    assert outcome.ended == "horizon"
    assert 1 <= outcome.skipped_updates < outcome.updates
    assert np.isfinite(outcome.metrics["val_loss"])
    assert any("loss scaling skipped" in remark for remark in outcome.remarks)


def test_weights_that_are_not_finite_end_a_training(points):
    (x, y), validation = points
    _, outcome = kbatch.train(
        Recipe(batch_size=32, optimizer="sgd", learning_rate=1e30),
        small,
        x,
        y,
        validation,
        seconds=5.0,
    )
    assert outcome.ended == "nan"
    assert outcome.updates < 40


@pytest.mark.parametrize("compiled_before", [{True}, set()])
def test_a_gpu_full_of_programs_is_no_recipes_fault(compiled_before, points, monkeypatch):
    monkeypatch.setattr(run, "_compiled_before", compiled_before)

    class Full(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                raise tf.errors.InternalError(
                    None, None, "Failed to load in-memory CUBIN: CUDA_ERROR_OUT_OF_MEMORY"
                )
            return x

    def build():
        model = keras.Sequential([keras.Input((12,)), Full(), keras.layers.Dense(1, "sigmoid")])
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return model

    (x, y), validation = points
    arguments = Recipe(jit_compile=True), build, x, y, validation
    if compiled_before:
        with pytest.raises(SearchError, match="Begin again in a new process"):
            kbatch.train(*arguments, epochs=1)
    else:  # a first program that does not fit is too large, in every process
        assert kbatch.train(*arguments, epochs=1)[1].ended == "out_of_memory"
        assert not run._compiled_before


def tied_in_branches(hp=None):
    inputs = {name: keras.Input((12,), name=name) for name in "ab"}
    tied, ends = keras.layers.Dense(12, name="tied"), []
    for start in inputs.values():
        x = tied(keras.layers.RepeatVector(64)(start))
        for _ in range(4):
            x = keras.layers.Dense(12, "gelu")(x)
        ends.append(x)
    x = tied(keras.layers.Add()(ends))
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(x[:, 0]))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.parametrize("recompute", ["none", "minimal"])
def test_a_sum_in_another_order_is_remarked(points, recompute):
    (x, y), (other_x, other_y) = points
    data = {"a": x, "b": -x}, y
    validation = {"a": other_x, "b": -other_x}, other_y
    recipe = Recipe(batch_size=256, recompute=recompute)
    _, outcome = kbatch.train(recipe, tied_in_branches, *data, validation, seconds=0.3)
    said = [remark for remark in outcome.remarks if "to rounding, not to the bit" in remark]
    assert len(said) == (recompute == "minimal")
