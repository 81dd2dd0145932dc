"""What does not go together is said before anything is trained."""

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch import Recipe, Space
from kbatch.errors import DataError

RNG = np.random.default_rng(0)
X, Y = RNG.random((60, 8, 8, 3)).astype("float32"), RNG.integers(0, 3, 60)


def build():
    layers = [
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(3, "softmax", dtype="float32"),
    ]
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def any_size():
    layers = [
        keras.layers.Conv2D(4, 3),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(3, "softmax"),
    ]
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def ignoring():
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Conv2D(3, 1, activation="softmax")]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(ignore_class=255))
    return model


def train(x, y, validation_data, build=build, **arguments):
    return kbatch.train(Recipe(16), build, x, y, validation_data, seconds=0.1, **arguments)


WRONG = [
    (
        X,
        Y,
        (X[:, :4], Y),
        (
            r"the shape of the model's input, \(8, 8, 3\). Received: examples to "
            r"validate on of \(4, 8, 3\)"
        ),
    ),
    (X[..., :1], Y, (X, Y), r"examples to train on of \(8, 8, 1\)"),
    (X, Y, (X, keras.utils.to_categorical(Y, 3)), "both as numbers of classes, or both one-hot"),
    (
        X,
        Y + 5,
        (X, Y),
        r"from 0 to 2: the model has 3 outputs. Received: labels to train on from 5 to 7",
    ),
    (X, Y - 1, (X, Y), "labels to train on from -1 to 1"),
    (X, Y, (X, Y + 1), "labels to validate on from 1 to 3"),
]


@pytest.mark.parametrize(("x", "y", "validation", "says"), WRONG)
def test_a_training_refuses_it(x, y, validation, says):
    with pytest.raises(DataError, match=says):
        train(x, y, validation)


def test_a_search_says_all_of_it_before_the_first_trial(tmp_path):
    hypermodel = kbatch.HyperModel(build, Space(batch_size=16), seconds_per_trial=0.1)
    tuner = keras_tuner.RandomSearch(
        hypermodel, objective=kbatch.objective(), max_trials=1, directory=str(tmp_path)
    )
    with pytest.raises(DataError, match="labels to validate on from 1 to 3"):
        tuner.search(X, Y, validation_data=(X, Y + 1), verbose=0)
    assert not list(tmp_path.rglob("records.jsonl"))


def test_other_sizes_and_labels_of_one_dimension_more_are_taken():
    """Sizes where the model takes them, and a dimension that is of size one."""
    assert train(X, Y, (X[:, :4], Y[:, None]), any_size)[1].ended == "horizon"


def test_a_class_that_the_loss_ignores_may_have_any_number():
    labels = RNG.choice([0, 1, 2, 255], (60, 8, 8))
    outcome = train(
        X, labels, (X, labels), ignoring, metric="val_loss", direction="min", chance=2.0
    )[1]
    assert outcome.ended == "horizon"


def test_batched_datasets_are_compared_example_by_example():
    good = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    assert train(good, None, good)[1].ended == "horizon"
    with pytest.raises(DataError, match=r"to validate on of \(4, 8, 3\)"):
        train(good, None, tf.data.Dataset.from_tensor_slices((X[:, :4], Y)).batch(8))
