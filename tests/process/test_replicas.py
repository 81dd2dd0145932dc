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
