"""Searches of a quarter of a second a trial, with a small model and stock tuners."""

import os
import shutil
import time

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
        for name in ("metric", "direction", "chance", "target", "loss", "metrics", "values")
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


def search_again(directory, **arguments):
    """The tuner of the search that all tests share, in another folder that has a copy of it."""
    return tuner_of(directory, **{"max_trials": 2, "seed": 1, **arguments})


def finish(directory, points):
    """Search: a baseline and two trials."""
    search(search_again(directory), points)


def confirm(directory, points):
    """Train all recipes of a finished search again, each with one fresh seed."""
    (x, y), validation = points
    data = {"validation_data": validation, "test_data": validation, "verbose": 0}
    return kbatch.confirm(search_again(directory), x, y, top=2, seeds=1, **data)


def stored_once(folder, make):
    """Make a folder once for all workers of xdist: the first makes it, and the others wait."""
    lock = folder.with_suffix(".lock")
    while not folder.exists():
        try:
            lock.mkdir()
        except FileExistsError:
            time.sleep(0.1)
            continue
        try:
            if not folder.exists():
                making = folder.with_suffix(f".{os.getpid()}")
                make(making)
                making.rename(folder)
        finally:
            shutil.rmtree(lock)
    return folder
