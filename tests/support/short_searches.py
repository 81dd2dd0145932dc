"""Searches of a quarter of a second a trial, with a small model and stock tuners."""

import keras
import keras_tuner

import kbatch
from kbatch import HyperModel, Space

SECONDS = 0.25


SPACE = Space(batch_size=(16, 32, 64), policy="float32", optimizer=("sgd", "adam"))


def build(hp):
    width = hp.Int("width", 8, 24, step=8)
    model = keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def tuner_of(
    directory,
    kind=keras_tuner.RandomSearch,
    model=build,
    space=SPACE,
    max_trials=2,
    objective=None,
    seconds=SECONDS,
    **arguments,
):
    own = {
        name: arguments.pop(name)
        for name in ("metric", "direction", "chance", "target", "loss", "metrics")
        if name in arguments
    }
    own["seed"] = arguments.pop("model_seed", 0)
    hypermodel = HyperModel(model, space, seconds_per_trial=seconds, **own)
    return kind(
        hypermodel,
        objective=objective or kbatch.objective(),
        max_trials=max_trials,
        directory=directory,
        project_name="p",
        **arguments,
    )


def search(tuner, points, **arguments):
    (x, y), validation = points
    tuner.search(x, y, **{"validation_data": validation, "verbose": 0, **arguments})
    return tuner


def hyperparameters_of(space):
    hp = keras_tuner.HyperParameters()
    space.declare(hp)
    return hp
