"""The GPU in use: a GPU that TensorFlow in this process holds cannot be measured by a worker."""

from __future__ import annotations

import sys

from kbatch.errors import MemoryLimitError
from kbatch.runtime import tensorflow_private

HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1"}


def environment() -> dict[str, str]:
    """Return the environment variables of a process that builds a model without measuring it.

    They hide the GPU from that process if this process holds it.
    """
    return HIDDEN if is_held() else {}


def check_free() -> None:
    """Refuse to measure a GPU that TensorFlow in this process already uses.

    TensorFlow takes nearly all of a GPU's memory when it starts, and never gives it back.

    Raises:
        MemoryLimitError: If TensorFlow in this process uses a GPU.
    """
    if is_held():
        raise MemoryLimitError(
            "The GPU must be free while batch sizes are measured",
            "TensorFlow in this process holds it already",
            "Restart Python and measure before the first TensorFlow operation, "
            "or use the command `kbatch max-batch`",
        )


def is_held() -> bool:
    """Tell whether TensorFlow in this process uses a GPU."""
    if "tensorflow" not in sys.modules:
        return False
    import tensorflow as tf

    return tensorflow_private.has_started() and bool(tf.config.get_visible_devices("GPU"))
