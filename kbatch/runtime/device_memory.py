"""Device memory: the bytes in use, now and at most."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from kbatch.runtime import device as runtime_device
from kbatch.runtime import gpus as runtime_gpus
from kbatch.runtime import nvidia
from kbatch.runtime.memory_limit import cpu_counts

TF32 = (8, 0)  # compute capability of Ampere, the first GPUs with it


@functools.cache
def device() -> str:
    """Return the device that Keras trains on: `"GPU:0"` if there is a GPU, else `"CPU:0"`."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def devices() -> tuple[str, ...]:
    """Return the devices that train: those of the strategy whose scope is entered, or `device`."""
    return runtime_gpus.strategy_devices() or (device(),)


def device_words() -> str:
    """Describe the training device for people: the GPU, or the processor and its cores.

    Of several GPUs Keras trains on the first, unless a strategy says otherwise; their number then
    comes first. One that multiplies float32 as TF32, with 10 bits of mantissa, is said to.
    """
    count = len(devices())
    return f"{count} x {_one_device()}" if count > 1 else _one_device()


def _one_device() -> str:
    cards = runtime_gpus.gpus_of_trainings()
    if cards:
        details = tf.config.experimental.get_device_details(cards[0])
        name = details.get("device_name", "GPU")
        return f"{name}, float32 as TF32" if _has_tf32(details) else str(name)
    # The machine's cores, not those left to this process: projects are compared by these words.
    return f"CPU {runtime_device.processor_name() or platform.machine()}, {os.cpu_count()} cores"


def tell_of_unused_card() -> None:
    """Warn, once in a process, if the machine has a card that TensorFlow does not see."""
    if not tf.config.list_physical_devices("GPU"):  # one that the user hides is seen
        nvidia.tell_of_unused_card(device_words())


def bytes_now() -> int | None:
    """Return the bytes in use on the device, or `None` if the device does not report them.

    Of several devices that train, it is the one with the most.
    """
    return _info("current")


def bytes_peak() -> int | None:
    """Return the peak bytes since `reset_peak`, or `None` if the device does not report them."""
    return _info("peak")


def reset_peak() -> None:
    """Start a new peak at the bytes in use now, if the device reports them."""
    if bytes_now() is not None:
        for name in devices():
            tf.config.experimental.reset_memory_stats(name)


def tries_algorithms() -> bool:
    """Tell whether the first step of a shape needs more memory than the later ones.

    On a GPU cuDNN and XLA then try their algorithms, with scratch memory for each
    (`GetDnnWorkspaceLimitOrDefault`, tensorflow/core/kernels/conv_ops_gpu.h: up to 8 GiB).
    """
    return device() != "CPU:0"


def wait() -> None:
    """Wait until the GPU has finished its work; a step on a CPU has ended when it returns.

    Only training devices are asked: an operation on another GPU takes all of its memory.
    """
    if device() != "CPU:0":
        for name in devices():
            with tf.device(name):
                tf.raw_ops.SyncDevice()


def _has_tf32(details: Mapping[str, Any]) -> bool:
    """Whether a GPU multiplies float32 as TF32."""
    capable = details.get("compute_capability", (0, 0)) >= TF32
    return capable and tf.config.experimental.tensor_float_32_execution_enabled()


def _info(which: str) -> int | None:
    if device() == "CPU:0" and not cpu_counts():
        return None
    try:
        return max(int(tf.config.experimental.get_memory_info(name)[which]) for name in devices())
    except (ValueError, tf.errors.OpError):
        return None
