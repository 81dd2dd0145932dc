"""An evaluation in one call measures what `model.evaluate` does, to the bit."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbatch.callbacks import evaluation
from kbatch.callbacks.evaluation import Passes, evaluated, loop_of_step

layers = keras.layers
rng = np.random.default_rng(0)
X = rng.normal(size=(70, 6)).astype("float32")
Y = rng.integers(0, 3, 70)
WEIGHTS = rng.random(70).astype("float32")


def classifier(kind=keras.Model, **arguments):
    x = keras.Input((6,))
    hidden = layers.BatchNormalization()(layers.Dropout(0.5)(layers.Dense(8, "relu")(x)))
    model = kind(x, layers.Dense(3, "softmax")(hidden))
    model.compile("sgd", "sparse_categorical_crossentropy", **arguments)
    return model


def plain():
    return classifier(metrics=["accuracy"])


def per_class():
    model = classifier(metrics=[keras.metrics.F1Score()])
    model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score(), "auc"])
    return model


def weighted():
    return classifier(metrics=["accuracy"], weighted_metrics=["accuracy"])


def two_outputs():
    x = keras.Input((6,))
    model = keras.Model(x, {"a": layers.Dense(3, "softmax")(x), "b": layers.Dense(1)(x)})
    losses = {"a": "sparse_categorical_crossentropy", "b": "mse"}
    model.compile("sgd", losses, metrics={"a": ["accuracy"], "b": ["mae"]})
    return model


def compiled_by_xla():
    return classifier(metrics=["accuracy"], jit_compile=True)


class OwnLogs(keras.Model):
    """A model whose own step returns other logs than its metrics."""

    def test_step(self, data):
        return {**super().test_step(data), "batch": keras.ops.shape(data[0])[0]}


class OwnMetrics(keras.Model):
    """A model that measures one number more."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        metrics = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**metrics, "sure": keras.ops.mean(keras.ops.max(y_pred, -1))}


def own_metrics():
    return classifier(OwnMetrics)


def own_logs():
    return classifier(OwnLogs)


def eager():
    return classifier(metrics=["accuracy"], run_eagerly=True)


def several_a_call():
    return classifier(metrics=["accuracy"], steps_per_execution=2)


ONE_HOT = np.eye(3, dtype="float32")[Y]
MODELS = {
    "plain": (plain, (X, Y)),
    "per class": (per_class, (X, ONE_HOT)),
    "weighted": (weighted, (X, Y, WEIGHTS)),
    "two outputs": (two_outputs, (X, {"a": Y, "b": X[:, :1]})),
    "by XLA": (compiled_by_xla, (X, Y)),
}
OF_THEIR_OWN = {
    "own logs": (own_logs, (X, Y)),
    "own metrics": (own_metrics, (X, Y)),
    "eager": (eager, (X, Y)),
    "several steps a call": (several_a_call, (X, Y)),
}


@pytest.mark.parametrize(("make", "data"), MODELS.values(), ids=MODELS)
def test_one_call_measures_what_keras_does(make, data):
    model, batches = make(), tf.data.Dataset.from_tensor_slices(data).batch(16)
    expected = [model.evaluate(batches, return_dict=True, verbose=0) for _ in range(2)][1]
    found = [evaluated(model, batches) for _ in range(2)]
    for name, value in expected.items():
        assert all(np.array_equal(each[name], value) for each in found)
    assert expected.keys() == found[0].keys()
    assert loop_of_step(model.test_function) is not None


def noted(size, taken):
    """Batches that tell of each that is read."""
    parts = tf.constant(X), tf.constant(Y)

    def note(start):
        taken.append(int(start))
        return start

    def batch(start):
        start = tf.ensure_shape(tf.py_function(note, [start], tf.int64), ())
        return tuple(part[start : start + size] for part in parts)

    return tf.data.Dataset.range(0, len(X), size).map(batch)


def test_each_pass_reads_all_batches_and_none_of_the_next():
    taken, model = [], plain()
    starts = list(range(0, len(X), 16))
    passes = Passes(tf.data.Dataset.from_tensor_slices((X, Y)).batch(16))
    expected = evaluated(model, passes)
    passes = Passes(noted(16, taken))
    for turn in range(1, 4):
        found = evaluated(model, passes)
        assert found == expected
        time.sleep(0.05)  # for what would read ahead
        assert taken == starts * turn


def test_a_pass_that_was_broken_off_is_not_gone_on_with():
    passes, model = Passes(tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)), plain()
    expected = evaluated(model, passes)
    with pytest.raises(KeyboardInterrupt), passes.one() as iterator:
        next(iterator)
        raise KeyboardInterrupt
    assert evaluated(model, passes) == expected


def test_another_compile_measures_by_its_metrics():
    model, batches = plain(), tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    evaluated(model, batches)
    model.compile(
        "sgd",
        "sparse_categorical_crossentropy",
        metrics=[keras.metrics.SparseCategoricalCrossentropy()],
    )
    assert evaluated(model, batches) == model.evaluate(batches, return_dict=True, verbose=0)


@pytest.mark.parametrize(("make", "data"), OF_THEIR_OWN.values(), ids=OF_THEIR_OWN)
def test_a_model_that_measures_in_its_own_way_is_left_to_it(make, data):
    model, batches = make(), tf.data.Dataset.from_tensor_slices(data).batch(16)
    assert evaluated(model, batches) == model.evaluate(batches, return_dict=True, verbose=0)
    assert loop_of_step(model.test_function) is None


def test_batches_whose_number_is_unknown_are_all_measured():
    model, batches = plain(), tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    unknown = batches.filter(lambda x, y: True)
    assert evaluated(model, unknown) == evaluated(model, batches)


def test_the_most_steps_of_keras_are_kept_to():
    model, batches = plain(), tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    keras.config.set_max_steps_per_epoch(2)
    try:
        expected = model.evaluate(batches, return_dict=True, verbose=0)
        assert evaluated(model, batches) == expected
    finally:
        keras.config.set_max_steps_per_epoch(None)
    assert evaluated(model, batches) != expected


def test_slow_batches_are_measured_in_calls_of_one():
    sizes = []

    def loop(batches, count):
        sizes.append(int(count))
        time.sleep(0.15 * int(count))

    evaluation._run(loop, None, 4)
    assert sizes == [1, 1, 1, 1]
