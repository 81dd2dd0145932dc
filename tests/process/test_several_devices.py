"""Whole searches of a stock tuner on two devices, which are two logical CPUs of a process."""

import json

import forked
import pytest

SEARCH = """
import json
import os
import sys
import warnings

import keras
import keras_tuner
import numpy as np
import tensorflow as tf

import kbatch
from kbatch.errors import KbatchError

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
rng = np.random.default_rng(0)
x = rng.normal(size=(200, 6)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
data = (x[:140], y[:140], (x[140:163], y[140:163]))  # the last batch is of an odd number


def build(hp):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def tuner(strategy, project="p", trials=2, max_batch=8, **space):
    space = {"optimizer": "adam", "batch_size": (32, 64)} | space
    space = kbatch.Space(**space)
    return keras_tuner.RandomSearch(
        kbatch.HyperModel(build, space, seconds_per_trial=0.02, max_batch=max_batch),
        objective=kbatch.objective(),
        max_trials=trials,
        distribution_strategy=strategy,
        directory="runs",
        project_name=project,
    )


def search(tuner):
    tuner.search(*data[:2], validation_data=data[2], callbacks=[])
    return tuner


def refusal(call):
    try:
        call()
    except KbatchError as error:
        return str(error)
    raise AssertionError("not refused")
"""
MIRRORED = """
searched = search(tuner(two, trials=1, normalization=("batch", "group")))
trials = kbatch.results.load("runs/p")
model = searched.get_best_models()[0]
runs = kbatch.confirm(searched, *data, top=1, seeds=1)
judged = {"epochs": 1, "metric": "val_loss", "chance": 0.7}
with two.scope():
    recipe = kbatch.Recipe(32, "adam", 0.01, micro_batch_size=16, ema=0.9, warmup_updates=2)
    trained, outcome = kbatch.train(recipe, build, *data, **judged)
_, alone = kbatch.train(recipe, build, *data, **judged)
again = search(tuner(two, trials=2, normalization=("batch", "group")))
shown = trials[["device", "ended", "micro_batch_size"]]
print(json.dumps({
    "trials": json.loads(shown.to_json(orient="records")),
    "synchronized": trained.layers[1].synchronized,
    "copies": len(model.layers[0].kernel.value.values),
    "runs": len(runs),
    "updates": outcome.updates,
    "curves": [[value for _, value in each.curve] for each in (alone, outcome)],
    "resumed": len(kbatch.results.load("runs/p")),
    "on one device": refusal(lambda: search(tuner(None, normalization=("batch", "group")))),
}))
"""
REFUSED = """
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    space = {"batch_size": None, "baseline": kbatch.Recipe(24), "micro_batch_size": None}
    search(tuner(two, "default", trials=1, max_batch=1, **space))
one = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, "sigmoid")])
one.compile("adam", "binary_crossentropy", metrics=["accuracy"])


def uneven():
    search(tuner(two, "uneven", batch_size=(32, 33)))


def in_a_scope():
    with two.scope():
        search(tuner(two, "scope"))


def made_before():
    with two.scope():
        kbatch.train(kbatch.Recipe(32), lambda: one, *data, epochs=1)


print(json.dumps({
    "left out": [str(each.message) for each in said if "left out" in str(each.message)],
    "jit": refusal(lambda: search(tuner(two, "jit", jit_compile=(False, True)))),
    "uneven": refusal(uneven),
    "scope": refusal(in_a_scope),
    "made before": refusal(made_before),
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("several")


def said_by(code, folder):
    done = forked.code(f"import os\nos.chdir({str(folder)!r})\n{SEARCH}{code}", timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def mirrored(folder):
    return said_by(MIRRORED, folder)


@pytest.fixture(scope="module")
def refused(folder):
    return said_by(REFUSED, folder)


@pytest.mark.slow
def test_a_stock_tuner_searches_on_two_devices(mirrored):
    assert [trial["ended"] for trial in mirrored["trials"]] == ["horizon"] * 2
    assert mirrored["copies"] == 2
    assert mirrored["runs"] == 2


@pytest.mark.slow
def test_records_say_how_many_devices_trained(mirrored):
    assert all(trial["device"].startswith("2 x CPU") for trial in mirrored["trials"])


@pytest.mark.slow
def test_the_largest_batch_is_that_of_each_device(mirrored):
    _, *trials = mirrored["trials"]
    assert {trial["micro_batch_size"] for trial in trials} == {16}  # twice the limit of 8


@pytest.mark.slow
def test_a_recipe_is_trained_in_a_strategys_scope(mirrored):
    assert mirrored["updates"] == 5  # 140 examples by 32, rounded up
    assert mirrored["synchronized"]


@pytest.mark.slow
def test_curves_are_those_of_one_device(mirrored):
    """With warm-up, accumulation, batch normalization and averaged weights."""
    alone, together = mirrored["curves"]
    assert len(alone) > 2
    assert together == pytest.approx(alone, rel=1e-4)


@pytest.mark.slow
def test_a_search_is_resumed_on_as_many_devices_only(mirrored):
    assert mirrored["resumed"] == 3
    assert "device was '2 x CPU" in mirrored["on one device"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jit", "`jit_compile` must be False"),
        ("uneven", "multiples of the 2 devices"),
        ("scope", "outside of a strategy's scope"),
        ("made before", "outside of the strategy's scope"),
    ],
)
def test_what_two_devices_cannot_do_is_refused_by_name(name, words, refused):
    assert words in refused[name]


def test_default_sizes_that_cannot_be_are_left_out(refused):
    (warning,) = refused["left out"]
    assert "256, 512 are left out: there are 140 training examples and 2 devices" in warning
