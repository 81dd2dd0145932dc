"""Precision: which dtype policies are fast on this machine. Imports TensorFlow only when asked."""

from __future__ import annotations

import functools

# compute capability of the first cards that multiply float16 faster than float32 (Volta)
TENSOR_CORES = (7, 0)


@functools.cache
def fast_policies() -> tuple[str, ...]:
    """`float32`, and `mixed_float16` where the GPU that Keras trains on has tensor cores.

    On a CPU mixed_float16 was measured five times slower than float32. The GPU is asked for its
    compute capability
    alone: neither its memory nor a context is taken.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    return (
        ("float32", "mixed_float16")
        if details.get("compute_capability", (0, 0)) >= TENSOR_CORES
        else ("float32",)
    )
