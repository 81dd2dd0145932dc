"""Device: the processor, the GPUs that train, and what they are fast with."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from kbatch.errors import MemoryLimitError, SearchError
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


_left: list[Any] = []  # hidden from this process by `leave_to_workers`


def replicas() -> int:
    """Return how many devices train at once: those of the strategy whose scope is entered, or 1."""
    import tensorflow as tf

    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def strategy_devices() -> tuple[str, ...]:
    """Return the devices of the strategy whose scope is entered, such as `"GPU:1"`.

    It is empty where one device trains, which is Keras' own choice.
    """
    if replicas() == 1:
        return ()
    import tensorflow as tf

    names = tf.distribute.get_strategy().extended.worker_devices
    return tuple(name.rpartition("device:")[2] for name in names)


def entered_strategy() -> Any:
    """Return the strategy whose scope is entered, or `None`."""
    import tensorflow as tf

    return tf.distribute.get_strategy() if tf.distribute.has_strategy() else None


def check_strategy(strategy: Any) -> None:
    """Refuse a strategy with which a training cannot be measured."""
    import tensorflow as tf

    if strategy is not None and type(strategy) is not tf.distribute.MirroredStrategy:
        raise SearchError(
            "Several devices must be those of a tf.distribute.MirroredStrategy",
            type(strategy).__name__,
            'Use tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"]), or no strategy',
        )


def check_outside_strategy() -> None:
    """Refuse a search inside the scope of a strategy, which KerasTuner would leave half-way."""
    if entered_strategy() is not None:
        raise SearchError(
            "A search must be called outside of a strategy's scope",
            f"inside that of a {type(entered_strategy()).__name__}",
            "Give the strategy to the tuner: distribution_strategy=…",
        )


def strategy_scope(strategy: Any) -> AbstractContextManager[Any]:
    """Return the scope of a strategy that `check` has passed; an empty one for `None`."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def check_sizes(batch_sizes: Sequence[int]) -> None:
    """Refuse batches and passes that the devices cannot share equally."""
    count = replicas()
    uneven = [size for size in dict.fromkeys(batch_sizes) if size % count]
    if uneven:
        raise SearchError(
            f"Batch sizes, the baseline's too, must be multiples of the {count} devices",
            ", ".join(map(str, uneven)),
            f"Pass such as {even_size(uneven[0])}: Space(batch_size=…, "
            "baseline=kbatch.Recipe(batch_size=…))",
        )


def even_size(size: int) -> int:
    """Return the next multiple of the number of devices."""
    return -(-size // replicas()) * replicas()


def gpus_of_trainings() -> list[Any]:
    """Return the GPUs that trainings of this process or of its workers can use."""
    import tensorflow as tf

    return list(_left) or list(tf.config.get_visible_devices("GPU"))


def leave_gpus_to_workers() -> None:
    """Hide the GPUs from TensorFlow in this process, so that worker processes can take them.

    TensorFlow takes nearly all of a GPU's memory when it starts, and never gives it back.
    """
    import tensorflow as tf

    if holds_gpu():
        raise SearchError(
            "Isolated trials must come before anything else uses the GPU",
            "TensorFlow in this process holds it already",
            "Restart Python, and make the hypermodel with isolated=True, or the tuner with its "
            "executor, before the first TensorFlow operation",
        )
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        _left[:] = gpus
        tf.config.set_visible_devices([], "GPU")


def check_gpus_not_left() -> None:
    """Refuse a training in this process whose GPUs were left to workers."""
    if _left:
        raise SearchError(
            "A training must have the GPU of this process",
            "a process whose hypermodel left it to its workers",
            "Restart Python, or train with isolated=True too",
        )


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

    cards = gpus_of_trainings()
    details = tf.config.experimental.get_device_details(cards[0]) if cards else {}
    return tuple(details.get("compute_capability", (0, 0)))


def compilations() -> tuple[bool, ...]:
    """Return what is worth a search: without XLA, and on a GPU also with it.

    On a GPU Keras' own default, `jit_compile="auto"`, compiles every model that XLA can compile.
    """
    return (False, True) if gpus_of_trainings() else (False,)
