"""Small models for tests of SAM and proximal training, and the trainings that compare them."""

import keras
import numpy as np
from keras import layers

from kbatch.models.compilation import CompileArguments
from kbatch.models.maker import ModelMaker
from kbatch.models.scopes import augmented
from kbatch.models.train_step import trained_by_method

METHODS = ("sam:0.05", "proximal:0.1", "proximal:5:2")
SPARSE = keras.losses.SparseCategoricalCrossentropy


def data(examples=32, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, 5)).astype("float32")
    return x, rng.integers(0, 3, examples)


def dense(*more):
    """An uncompiled model of three classes."""
    return keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(8, "tanh"),
            *more,
            layers.Dense(3),
            layers.Activation("linear", dtype="float32"),
        ]
    )


def compiled_with(optimizer, *more):
    """A build function of a model compiled with an optimizer of its own."""

    def build():
        model = dense(*more)
        model.compile(optimizer, SPARSE(True), jit_compile=False)
        return model

    return build


def trained(build, recipe, x, y, loss=None, metrics=None, augmentation=(), **arguments):
    """The model after one pass over the data, and Keras' history, by the recipe's own steps."""
    given = CompileArguments(loss, metrics)
    model = ModelMaker(build, given, seed=3).make(recipe)
    with trained_by_method(model, recipe), augmented(model, augmentation):
        history = model.fit(
            x,
            y,
            batch_size=recipe.examples_per_step,
            shuffle=False,
            verbose=0,
            **{"epochs": 1, **arguments},
        )
    return model, dict(history.history)


def moves(build, recipe, x, y, loss=None, **arguments):
    """How far a training moved all weights, as one vector."""
    first = ModelMaker(build, CompileArguments(loss), seed=3).make(recipe).get_weights()
    last = trained(build, recipe, x, y, loss, **arguments)[0].get_weights()
    return np.concatenate(
        [(after - before).ravel() for after, before in zip(last, first, strict=True)]
    )


def assert_same_moves(one, other, tolerance):
    """Two trainings moved the weights alike, measured by how far they moved them."""
    assert np.linalg.norm(one) > 1e-3
    assert np.linalg.norm(one - other) < tolerance * np.linalg.norm(one)


def equations(optimizer, recipe):
    """A softmax regression in float64 before and after two passes over three batches of 32."""
    keras.config.set_floatx("float64")
    x, y = data(96)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, dtype="float64")])
    model.compile(optimizer, SPARSE(True), jit_compile=False)
    before = model.get_weights()
    with trained_by_method(model, recipe):
        model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    batches = 2 * [(x[first : first + 32], y[first : first + 32]) for first in (0, 32, 64)]
    return model, before, batches
