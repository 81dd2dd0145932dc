"""Meter: bytes in use on the training device, where the device can tell.

A CPU tells them all only with `TF_CPU_ALLOCATOR_USE_BFC=true`: oneDNN's allocator leaves out what
is below 256 KiB, so that a small model would seem to need nothing.
"""

from __future__ import annotations

import functools
import os
import platform

import tensorflow as tf

from kbatch.device import limit


@functools.cache
def device() -> str:
    """The device that Keras trains on: `"GPU:0"` if there is one, else `"CPU:0"`."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def device_words() -> str:
    """What the device is, for people: its model name, and how many there are.

    On a machine without a GPU, the processor and its architecture.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
        return f"{len(gpus)} x {name}"
    return f"CPU {_processor()}, {os.cpu_count()} cores"


def bytes_now() -> int | None:
    """Bytes in use on the device, or `None` if it cannot tell (a CPU without `TF_CPU_ALLOCATOR_USE_BFC=true`)."""
    return _info("current")


def bytes_peak() -> int | None:
    """The most bytes in use since `reset_peak`, or `None` if the device cannot tell."""
    return _info("peak")


def reset_peak() -> None:
    """Start a new peak at the bytes in use now; does nothing where the device cannot tell."""
    if bytes_now() is not None:
        tf.config.experimental.reset_memory_stats(device())


def wait() -> None:
    """Return once the GPU has done all it was given; a CPU step has always ended when it returns."""
    if device() != "CPU:0":
        tf.test.experimental.sync_devices()


def _info(which: str) -> int | None:
    if device() == "CPU:0" and not limit.cpu_counts():
        return None
    try:
        return int(tf.config.experimental.get_memory_info(device())[which])
    except (ValueError, tf.errors.OpError):
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(
                line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.machine()
