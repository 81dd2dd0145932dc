"""Precision: the policies and compilations that the GPUs of this machine are fast with."""

from __future__ import annotations

import functools

FLOAT8_CORES = (8, 9)  # of Ada, the first GPUs that multiply float8
# compute capability of Volta, the first GPUs that multiply float16 faster than float32
TENSOR_CORES = (7, 0)


@functools.cache
def fast_policies() -> tuple[str, ...]:
    """Return `float32`, and `mixed_float16` too if the GPU that Keras trains on has tensor cores.

    On a CPU mixed_float16 was measured five times slower than float32. The GPU is asked for its
    compute capability only, which takes none of its memory.
    """
    return ("float32", "mixed_float16") if _capability() >= TENSOR_CORES else ("float32",)


def multiplies_float8() -> bool:
    """Return whether the GPU that Keras trains on multiplies matrices of float8."""
    return _capability() >= FLOAT8_CORES


def _capability() -> tuple[int, int]:
    """The compute capability of the GPU; (0, 0) without one."""
    import tensorflow as tf

    from kbatch.runtime.gpus import gpus_of_trainings

    cards = gpus_of_trainings()
    details = tf.config.experimental.get_device_details(cards[0]) if cards else {}
    return tuple(details.get("compute_capability", (0, 0)))


def compilations() -> tuple[bool, ...]:
    """Return what is worth a search: without XLA, and on a GPU also with it.

    On a GPU Keras' own default, `jit_compile="auto"`, compiles every model that XLA can compile.
    """
    from kbatch.runtime.gpus import gpus_of_trainings

    return (False, True) if gpus_of_trainings() else (False,)
