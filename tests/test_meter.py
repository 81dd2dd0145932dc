"""A CPU tells its bytes only where TensorFlow's own allocator counts all of them."""

import os

import forked
import pytest
import tensorflow as tf

from kbatch.runtime import device_memory

CODE = """
import tensorflow as tf
from kbatch.runtime import device_memory
small = [tf.random.normal((100, 100)) for _ in range(20)]
print(device_memory.bytes_now())
"""


@pytest.mark.parametrize(
    ("setting", "told"), [("true", True), ("1", True), ("false", False), ("", False)]
)
def test_small_blocks_are_counted_or_nothing_is_said(setting, told, monkeypatch):
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", setting)
    done = forked.code(CODE)
    said = done.stdout.strip()
    assert (int(said) >= 20 * 40_000) if told else said == "None"


WAITED = """
import tensorflow as tf
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], 2 * [tf.config.LogicalDeviceConfiguration()])
from kbatch.runtime import device_memory
device_memory.device = lambda: "CPU:1"
sync, ran = tf.raw_ops.SyncDevice, []
tf.raw_ops.SyncDevice = lambda: ran.append(tf.zeros(1).device[-5:]) or sync()
tf.test.experimental.sync_devices = lambda: ran.append("all")
device_memory.wait()
print(ran)
"""


def test_only_the_training_device_is_waited_for():
    assert forked.code(WAITED).stdout == "['CPU:1']\n"


WORDS = """
import tensorflow as tf
from kbatch.runtime import device_memory
print(device_memory.device_words())
tf.config.experimental.get_device_details = lambda card: {
    "device_name": "A100", "compute_capability": (8, 0)}
print(device_memory.device_words())
tf.config.experimental.enable_tensor_float_32_execution(False)
tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[:1], "GPU")
print(device_memory.device_words())
"""


def test_the_gpu_is_named_that_trains_and_its_tf32(fake_gpu, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", "2")
    assert forked.code(WORDS).stdout.splitlines() == [
        "FAKE GPU",
        "A100, float32 as TF32",
        "A100",
    ]


def test_a_limited_process_sees_one_card(fake_gpu, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", "2")
    for limit_bytes in (None, 100 << 20):
        code = (
            f"from kbatch.runtime import device_memory\ndevice_memory.apply_limit({limit_bytes})\n"
        )
        said = forked.code(
            code + "print(device_memory.device_words(), device_memory.gpu_limit() >> 20)"
        ).stdout
        assert said == f"FAKE GPU {400 if limit_bytes is None else 100}\n"


CHECKSUMMED = """
import numpy as np, tensorflow as tf
from kbatch.data.streams import ArraySource
from kbatch.runtime import device_memory
arrays = np.ones((1000, 10_000), "float32"), np.zeros(1000, "int32")
source = ArraySource(arrays)
device_memory.reset_peak()
before = device_memory.bytes_now()
source.fingerprint()
print(device_memory.bytes_peak() - before)
"""


def test_a_checksum_of_the_data_takes_no_device_memory(fake_gpu):
    assert int(forked.code(CHECKSUMMED).stdout) < 100_000  # of 40 MB


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="a GPU is told instead")
def test_a_resumed_search_may_have_fewer_cores(monkeypatch):
    # the words are compared on resume, and taskset does not change the machine
    words = device_memory.device_words()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    assert device_memory.device_words() == words
    assert words.endswith(f"{os.cpu_count()} cores")
