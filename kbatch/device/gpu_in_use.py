"""Holder: whether TensorFlow in this process already holds the GPU, which no worker can then measure."""

from __future__ import annotations

import sys

from kbatch.errors import MemoryLimitError

HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1"}


def environment() -> dict[str, str]:
    """Environment variables of a process that is to make a model, but not to measure it, beside this one: without the GPU, if it is held."""
    return HIDDEN if is_held() else {}


def check_free() -> None:
    """Refuse to measure beside a TensorFlow that has begun to use a GPU in this process.

    TensorFlow takes nearly all of a GPU's memory when it begins and never gives it back.

    Raises:
        MemoryLimitError: If it has.
    """
    if is_held():
        raise MemoryLimitError(
            "The GPU must be free while batch sizes are measured",
            "TensorFlow in this process holds it already",
            "Restart Python and measure before the first TensorFlow operation, or use the command `kbatch max-batch`",
        )


def is_held() -> bool:
    """Whether TensorFlow in this process has begun to use a GPU."""
    if "tensorflow" not in sys.modules:
        return False
    import tensorflow as tf
    from tensorflow.python.eager import context

    return context.context()._context_handle is not None and bool(
        tf.config.list_physical_devices("GPU")
    )
