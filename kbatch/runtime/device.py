"""Device: the processor, and whether this process holds the GPU."""

from __future__ import annotations

import os
import platform
import sys

from kbatch.errors import MemoryLimitError
from kbatch.runtime import tensorflow_private


def processor_name() -> str | None:
    """Return the model name of the processor; `None` if the system does not tell it.

    Linux tells it in /proc/cpuinfo only: neither psutil nor `platform.processor` reads that file.
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [
                line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
            ]
    except OSError:
        return None
    return names[0] if names else None


def cores() -> int:
    """Return the cores that this process may use: `taskset` or a scheduler may have left it few."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_words() -> str:
    """Describe the processor for people: its name, or else its architecture, and its cores."""
    count = cores()
    return f"{processor_name() or platform.machine()}, {count} core{'s' if count > 1 else ''}"


HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1"}


def without_gpu() -> dict[str, str]:
    """Return the environment variables of a process that builds a model without measuring it.

    They hide the GPU from that process if this process holds it.
    """
    return HIDDEN if holds_gpu() else {}


def check_gpu_free() -> None:
    """Refuse to measure a GPU that TensorFlow in this process already uses.

    TensorFlow takes nearly all of a GPU's memory when it starts, and never gives it back.
    """
    if holds_gpu():
        raise MemoryLimitError(
            "The GPU must be free while batch sizes are measured",
            "TensorFlow in this process holds it already",
            "Restart Python and measure before the first TensorFlow operation, "
            "or use the command `kbatch max-batch`",
        )


def holds_gpu() -> bool:
    """Tell whether TensorFlow in this process uses a GPU."""
    if "tensorflow" not in sys.modules:
        return False

    import tensorflow as tf

    return tensorflow_private.has_started() and bool(tf.config.get_visible_devices("GPU"))
