"""The processor's words, and the strategy of several devices."""

import os
import platform
import subprocess
import sys

import pytest
import tensorflow as tf

from kbatch import Recipe, Space
from kbatch.errors import ModelError, SearchError
from kbatch.models import replicas
from kbatch.runtime import device, device_memory

distribute = tf.distribute


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setattr(device, "replicas", lambda: 3)


@pytest.mark.parametrize(
    "kind",
    [
        distribute.TPUStrategy,
        distribute.MultiWorkerMirroredStrategy,
        distribute.experimental.ParameterServerStrategy,
        distribute.experimental.CentralStorageStrategy,
        distribute.OneDeviceStrategy,
    ],
)
def test_other_strategies_are_refused_by_name(kind):
    with pytest.raises(SearchError, match=f"MirroredStrategy.*Received: {kind.__name__}"):
        device.check_strategy(object.__new__(kind))


@pytest.mark.parametrize("given", [None, object.__new__(distribute.MirroredStrategy)])
def test_no_strategy_and_a_mirrored_one_are_taken(given):
    assert device.check_strategy(given) is None


def test_without_a_strategy_one_device_trains():
    assert device.replicas() == 1
    assert device.strategy_devices() == ()
    assert device_memory.devices() == (device_memory.device(),)
    assert device.entered_strategy() is None
    device.check_outside_strategy()


def test_a_strategy_of_one_device_is_one_device():
    with distribute.MirroredStrategy(["CPU:0"]).scope():
        assert device.strategy_devices() == ()
        assert " x " not in device_memory.device_words()
        device.check_strategy(device.entered_strategy())
        with pytest.raises(SearchError, match="distribution_strategy="):
            device.check_outside_strategy()


def test_sizes_must_be_shared_equally(three):
    device.check_sizes([3, 48])
    with pytest.raises(SearchError, match="multiples of the 3 devices.*Received: 32, 64.*as 33"):
        device.check_sizes([32, 48, 64, 32])


@pytest.mark.parametrize(("size", "more"), [(1, 3), (3, 3), (32, 33)])
def test_the_next_size_that_can_be_shared(size, more, three):
    assert device.even_size(size) == more


@pytest.mark.parametrize(
    "given", [{"jit_compile": True}, {"training": "sam:0.05"}, {"batch_schedule": "linear:8"}]
)
def test_axes_of_one_device_are_refused_by_name(given, three):
    (name,) = given
    with pytest.raises(ModelError, match=f"On several devices `{name}` must be"):
        replicas.check_space(Space(**given))
    with pytest.raises(ModelError, match=name):
        replicas.check(None, Recipe(48, **given), "mse")


def test_what_a_space_leaves_to_the_machine_is_not_refused(three):
    assert replicas.check_space(Space()) is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_a_process_kept_to_one_core_is_told_one():
    first = min(os.sched_getaffinity(0))
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os; os.sched_setaffinity(0, [{first}]);"
            "from kbatch.runtime import device; print(device.processor_words())",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip().endswith(", 1 core")


def test_all_cores_are_told_where_nothing_is_kept_from_them(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert device.cores() == os.cpu_count()
    monkeypatch.setattr(device, "cores", lambda: 8)
    monkeypatch.setattr(device, "processor_name", lambda: None)
    assert device.processor_words() == f"{platform.machine()}, 8 cores"
