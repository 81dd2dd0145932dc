"""Two devices train as one device trains on the whole batch: the same losses and weights."""

import json

import forked
import pytest
import replica_cases
from replica_cases import CASES, KERAS, TOLERANCE

FAST = [
    "clipped, accumulating",
    "batch normalization, recompute",
    "class weights, accumulating",
    "overflow on one device",
]


def differences(names):
    done = forked.run(replica_cases.main, *names, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def of_few():
    return differences(FAST)


@pytest.fixture(scope="module")
def of_others():
    return differences([name for name in (*CASES, KERAS) if name not in FAST])


@pytest.mark.parametrize("name", FAST)
def test_two_devices_equal_one(name, of_few):
    assert of_few[name] <= TOLERANCE[CASES[name].policy]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in FAST])
def test_two_devices_equal_one_in_all_that_kbatch_wraps(name, of_others):
    assert of_others[name] <= TOLERANCE[CASES[name].policy]


@pytest.mark.slow
def test_by_itself_keras_clips_each_part_of_a_batch(of_others):
    """If this fails, a newer Keras has mended it, and `as_one_device` may do less."""
    assert of_others[KERAS] > 1e-3


OWN_SCOPE = """
import keras
import numpy as np
import replica_cases

import kbatch

two = replica_cases.strategy()
x, y = np.zeros((64, 4), "float32"), np.zeros(64, "int32")


def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def inside():
    with two.scope():
        return build()


try:
    kbatch.train(kbatch.Recipe(16), inside, x, y, (x, y), updates=2)
except kbatch.errors.ModelError as error:
    print(error)
with two.scope():
    model, _ = kbatch.train(kbatch.Recipe(16), build, x, y, (x, y), updates=2)
print(int(model.optimizer.iterations.numpy()))
"""


def test_a_scope_that_build_enters_alone_is_refused():
    done = forked.code(OWN_SCOPE)
    assert done.returncode == 0, done.stderr[-3000:]
    refused, updates = done.stdout.splitlines()[-2:]
    assert "in the scope in which it is trained" in refused
    assert "MirroredStrategy of 2 devices" in refused
    assert updates == "2"
