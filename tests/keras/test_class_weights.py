"""Class weights are plain Keras' on arrays: classes that are not named weigh 1."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from short_searches import tuner_of

import kbatch
from kbatch import Recipe
from kbatch.errors import DataError, KbatchError
from kbatch.records.project import Project
from kbatch.results.loading import load_records

CLASSES = 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 6)).astype("float32")
Y = RNG.integers(0, CLASSES, 64)
ONE_HOT = np.eye(CLASSES, dtype="float32")[Y]


def model_of(units, activation, loss):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(units, activation)])
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


def sparse(hp=None):
    return model_of(CLASSES, "softmax", "sparse_categorical_crossentropy")


def one_hot(hp=None):
    return model_of(CLASSES, "softmax", "categorical_crossentropy")


def binary(hp=None):
    return model_of(1, "sigmoid", "binary_crossentropy")


LABELS = {
    "sparse": (sparse, Y),
    "sparse in a column": (sparse, Y[:, None]),
    "one-hot": (one_hot, ONE_HOT),
    "binary": (binary, (Y > 0).astype("float32")),
    "binary in a column": (binary, (Y > 0).astype("int32")[:, None]),
}
WEIGHTS = [{0: 2.0}, {1: 0.2}, {0: 0.5, 1: 3}, {np.int64(1): np.float32(0.3)}, {}]
SOURCES = {
    "arrays": lambda x, y: (x, y),
    "examples": lambda x, y: (tf.data.Dataset.from_tensor_slices((x, y)), None),
    "batches": lambda x, y: (tf.data.Dataset.from_tensor_slices((x, y)).batch(8), None),
}


def as_in_keras(build, y, weights):
    """Plain Keras, two whole batches of all examples."""
    model = build()
    model.fit(X, y, batch_size=64, epochs=2, class_weight=weights, shuffle=False, verbose=0)
    return model.get_weights()


CASES = [
    (labels, weights, source, passes)
    for (labels, weights), source, passes in zip(
        [*itertools.product(LABELS, WEIGHTS[:2]), *(("sparse", each) for each in WEIGHTS[2:])],
        itertools.cycle(SOURCES),
        itertools.cycle((1, 4)),
    )
]


@pytest.mark.parametrize(("labels", "weights", "source", "passes"), CASES)
def test_it_is_what_keras_has_for_arrays(labels, weights, source, passes):
    build, y = LABELS[labels]
    recipe = Recipe(64, "compiled", None, micro_batch_size=64 // passes)
    x, own = SOURCES[source](X, y)
    given = {"updates": 2, "metric": "val_accuracy", "class_weight": weights}
    model, _ = kbatch.train(recipe, build, x, own, (X, y), **given)
    for ours, theirs in zip(model.get_weights(), as_in_keras(build, y, weights), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_ignored_labels_weigh_nothing_and_are_looked_up_nowhere():
    def ignoring(hp=None):
        loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
        return model_of(CLASSES, "softmax", loss)

    y = np.where(np.arange(64) % 5, Y, -1)
    recipe = Recipe(64, "compiled", None)
    given = {"updates": 2, "metric": "val_accuracy", "class_weight": {0: 2.0}}
    model, _ = kbatch.train(recipe, ignoring, X, y, (X, y), **given)
    for ours, theirs in zip(model.get_weights(), as_in_keras(ignoring, y, {0: 2.0}), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


REFUSALS = {
    "a class too many": (sparse, Y, {3: 2.0}, "classes from 0 to 2. Received: class 3"),
    "a negative class": (binary, Y > 0, {-1: 2.0}, "classes from 0 to 1. Received: class -1"),
    "a column too many": (one_hot, ONE_HOT, {7: 1.0}, "classes from 0 to 2. Received: class 7"),
    "a name": (sparse, Y, {"cat": 2.0}, "by whole numbers. Received: 'cat'"),
    "half a class": (sparse, Y, {0.5: 2.0}, "by whole numbers. Received: 0.5"),
    "a negative weight": (sparse, Y, {0: -1.0}, "at least 0. Received: 0: -1.0"),
    "no number": (sparse, Y, {0: float("nan")}, "finite number"),
    "an infinite weight": (sparse, Y, {0: float("inf")}, "finite number"),
    "a text": (sparse, Y, {0: "2"}, "finite number"),
    "no mapping": (sparse, Y, [1.0, 2.0, 1.0], "must be a mapping"),
    "balanced": (sparse, Y, "balanced", "must be a mapping"),
    "measurements": (binary, X[:, 0], {0: 2.0}, "labels must be numbers of classes"),
    "signs": (binary, np.where(Y > 0, 1, -1), {1: 2.0}, "labels must be numbers of classes"),
    "several classes": (one_hot, ONE_HOT[:, [0, 0, 1]], {1: 2.0}, "must have one class"),
}


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("kind", ["arrays", "batches"])
def test_other_weights_are_refused_in_a_sentence(kind, case):
    build, y, weights, says = REFUSALS[case]
    x, own = SOURCES[kind](X, np.asarray(y))
    given = {"validation_data": (X, np.asarray(y)), "class_weight": weights}
    with pytest.raises(DataError, match=says):
        kbatch.train(Recipe(16), build, x, own, updates=1, metric="val_accuracy", **given)


def test_a_search_refuses_them_before_its_first_training(tmp_path):
    given = {"validation_data": (X, Y), "class_weight": {3: 2.0}}
    with pytest.raises(KbatchError, match="class 3"):
        tuner_of(tmp_path, model=sparse).search(X, Y, verbose=0, **given)
    assert Project(tmp_path / "p").store.records() == []


def test_several_outputs_are_refused_in_a_sentence():
    def build(hp=None):
        inputs = keras.Input((6,))
        outputs = [keras.layers.Dense(1, name=name)(inputs) for name in "ab"]
        model = keras.Model(inputs, outputs)
        model.compile("sgd", ["mse", "mse"], metrics=[["mae"], ["mae"]])
        return model

    y = [Y, Y]
    given = {"updates": 1, "metric": "val_a_mae", "chance": 1.0, "class_weight": {0: 2.0}}
    with pytest.raises(DataError, match="must come with one output.*labels of 2 outputs"):
        kbatch.train(Recipe(16), build, X, y, (X, y), **given)


def test_a_search_confirms_with_its_weights(tmp_path):
    tuner = tuner_of(tmp_path, model=sparse, max_trials=1)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    given = {"validation_data": (X, Y), "class_weight": {0: 2.0}}
    tuner.search(data, verbose=0, **given)
    kbatch.confirm(tuner, data, seeds=1, **given)
    assert not [record for record in load_records(tmp_path / "p") if record.outcome.failed]


def test_a_noise_scale_is_measured_with_weights_of_some_classes():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    assert kbatch.noise_scale(sparse, data, None, Recipe(16), updates=10, class_weight={0: 2.0})
    with pytest.raises(DataError, match="class 9"):
        kbatch.noise_scale(sparse, data, None, Recipe(16), updates=10, class_weight={9: 2.0})
