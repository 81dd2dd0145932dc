"""The fake GPU itself: what it says, and that its memory has a limit."""

import subprocess
import sys

import forked

CODE = """
import tensorflow as tf
from kbatch.device import limit, meter
print(len(tf.config.list_physical_devices("GPU")), limit.apply({limit}), meter.device())
try:
    tf.zeros(({megabytes}, 1 << 18))
except tf.errors.ResourceExhaustedError:
    print("full")
"""


def test_a_forked_and_a_started_process_have_it(fake_gpu, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", "2")
    code = CODE.format(limit=100 << 20, megabytes=50)
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert started.stdout == forked.code(code).stdout == f"2 {100 << 20} GPU:0\n", started.stderr


def test_its_memory_is_limited_and_other_processes_have_none(fake_gpu, monkeypatch):
    assert forked.code(CODE.format(limit=None, megabytes=500)).stdout.splitlines() == [
        f"1 {400 << 20} GPU:0",
        "full",
    ]
    monkeypatch.delenv("FAKE_GPU")
    assert forked.code(CODE.format(limit=None, megabytes=1)).stdout == "0 None CPU:0\n"
