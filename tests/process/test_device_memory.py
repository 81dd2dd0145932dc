"""Memory of a device: its limit, the bytes in use, and where the allocator places them."""

import os

import forked
import pytest
import tensorflow as tf

from kbatch.errors import MemoryLimitError
from kbatch.runtime import device_memory
from kbatch.runtime.device_memory import Allocator, contiguous


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8 * 10**9),
        ("900 MB", 9 * 10**8),
        ("1.5GiB", 1610612736),
        ("512mib", 512 << 20),
        (10**9, 10**9),
        ("1e9", None),
        ("4 k", None),
        ("", None),
    ],
)
def test_bytes_of(text, size):
    if size is None:
        with pytest.raises(MemoryLimitError, match="Received"):
            device_memory.bytes_of(text)
    else:
        assert device_memory.bytes_of(text) == size


@pytest.mark.parametrize("wrong", [0, -1, True, float("inf"), float("nan"), None, "GB", "1.2.3GB"])
def test_nonsense_is_refused(wrong):
    with pytest.raises(MemoryLimitError, match="`memory_limit` must be bytes above 0"):
        device_memory.bytes_of(wrong)


def test_a_cpu_has_a_limit_only_if_both_variables_say_so(monkeypatch):
    monkeypatch.setenv(device_memory.CPU_LIMIT, "300")
    monkeypatch.setenv(device_memory.CPU_BFC, "true")
    assert device_memory.cpu_limit() == 300 << 20
    monkeypatch.setenv(device_memory.CPU_BFC, "false")
    assert device_memory.cpu_limit() is None  # TensorFlow does not mind the limit then
    monkeypatch.setenv(device_memory.CPU_BFC, "1")
    monkeypatch.setenv(device_memory.CPU_LIMIT, "much")
    assert device_memory.cpu_limit() is None


def test_the_environment_of_a_limit():
    assert device_memory.limit_environment(300 << 20) == {
        device_memory.CPU_BFC: "true",
        device_memory.CPU_LIMIT: "300",
    }
    assert device_memory.limit_environment(None) == {device_memory.CPU_BFC: "true"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("100KB", "at least 32 MiB"),
        ("1 MB", "at least 32 MiB"),
        ("99999999999999GB", "at most what this machine has"),
    ],
)
def test_a_limit_too_small_for_any_trial_is_refused(wrong, says):
    with pytest.raises(MemoryLimitError, match=f"`memory_limit` must be {says}"):
        device_memory.checked_limit(wrong)


def test_limits_that_this_machine_can_keep_are_taken():
    assert device_memory.checked_limit(None) is None
    assert device_memory.checked_limit("100MB") == 10**8
    assert device_memory.checked_limit(device_memory.most_bytes()) == device_memory.most_bytes()


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


MIB = 1 << 20


def test_what_is_freed_can_be_allocated_again_as_one():
    allocator = Allocator(64 * MIB, first_region=64 * MIB)
    chunks = [allocator.allocate(16 * MIB) for _ in range(4)]
    assert allocator.allocate(1) is None
    for chunk in chunks:
        allocator.free(chunk)
    assert allocator.largest() == 64 * MIB
    assert allocator.allocate(64 * MIB) is not None


def test_regions_double_and_are_not_joined():
    allocator = Allocator(100 * MIB)
    for _ in range(3):
        allocator.allocate(2 * MIB)  # regions of 2, 4 MiB
    assert allocator.largest() == 94 * MIB
    assert allocator.allocate(94 * MIB) is not None
    assert allocator.allocate(MIB // 4) is None


def test_a_chunk_is_split_only_if_it_is_twice_as_large():
    allocator = Allocator(32 * MIB, first_region=32 * MIB)
    allocator.allocate(17 * MIB)
    assert allocator.largest() == 0
    allocator = Allocator(32 * MIB, first_region=32 * MIB)
    allocator.allocate(16 * MIB)
    assert allocator.largest() == 16 * MIB


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([(1 << 20, False)] * 6, marks=pytest.mark.slow),
        [(30 << 20, True), (1 << 20, False), (30 << 20, False), (30 << 20, False)],
        [(1 << 20, True), (128 << 10, True), (2 << 20, True), *[(1 << 20, False)] * 6],
        pytest.param([(164_000_000 // 4 // 512 * 512, True)], marks=pytest.mark.slow),
    ],
)
def test_the_real_allocator_agrees_to_a_percent(sizes, monkeypatch):
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "true")
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "400")
    limit = 400 * MIB
    predicted = contiguous(limit, sizes)
    code = f"""
import keras
import tensorflow as tf
held = []
for size, drawn in {sizes}:
    held.append(keras.Variable("glorot_uniform" if drawn else "zeros", shape=(size // 512, 128)))
one = tf.raw_ops.Empty(shape=[int({predicted} * 0.99)], dtype=tf.uint8, init=False)
del one
try:
    tf.raw_ops.Empty(shape=[int({predicted} * 1.01) + {MIB}], dtype=tf.uint8, init=False)
    print("too much fitted")
except tf.errors.ResourceExhaustedError:
    print("agrees")
"""
    assert forked.code(code).stdout == "agrees\n"
