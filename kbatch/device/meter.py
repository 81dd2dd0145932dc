"""The memory meter: bytes in use on the training device.

A CPU reports all bytes only with `TF_CPU_ALLOCATOR_USE_BFC=true`. The allocator of oneDNN leaves
out blocks below 256 KiB (core/common_runtime/mkl_cpu_allocator.h, TensorFlow 2.21.0), so that a
small model would seem to need no memory.
"""

from __future__ import annotations

import functools
import os
import platform

import tensorflow as tf

from kbatch.device import limit, processor


@functools.cache
def device() -> str:
    """Return the device that Keras trains on: `"GPU:0"` if there is a GPU, else `"CPU:0"`."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def device_words() -> str:
    """Describe the training device for people: the GPUs, or the processor and its cores."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
        return f"{len(gpus)} x {name}"
    return f"CPU {processor.name() or platform.machine()}, {os.cpu_count()} cores"


def bytes_now() -> int | None:
    """Return the bytes in use on the device, or `None` if the device does not report them."""
    return _info("current")


def bytes_peak() -> int | None:
    """Return the peak bytes since `reset_peak`, or `None` if the device does not report them."""
    return _info("peak")


def reset_peak() -> None:
    """Start a new peak at the bytes in use now, if the device reports them."""
    if bytes_now() is not None:
        tf.config.experimental.reset_memory_stats(device())


def wait() -> None:
    """Wait until the GPU has finished its work; a step on a CPU has ended when it returns."""
    if device() != "CPU:0":
        tf.test.experimental.sync_devices()


def _info(which: str) -> int | None:
    if device() == "CPU:0" and not limit.cpu_counts():
        return None
    try:
        return int(tf.config.experimental.get_memory_info(device())[which])
    except (ValueError, tf.errors.OpError):
        return None
