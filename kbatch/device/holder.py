"""Holder: whether TensorFlow in this process already holds the GPU, which no worker can then measure."""

from __future__ import annotations

import sys

from kbatch.errors import MemoryLimitError


def check_free() -> None:
    """Refuse to measure beside a TensorFlow that has begun to use a GPU in this process.

    TensorFlow takes nearly all of a GPU's memory when it begins and never gives it back.

    Raises:
        MemoryLimitError: If it has.
    """
    if "tensorflow" not in sys.modules:
        return
    import tensorflow as tf
    from tensorflow.python.eager import context

    if context.context()._context_handle is not None and tf.config.list_physical_devices("GPU"):
        raise MemoryLimitError(
            "The GPU must be free while batch sizes are measured",
            "TensorFlow in this process holds it already",
            "Restart Python and measure before the first TensorFlow operation, or use the command `kbatch max-batch`",
        )
