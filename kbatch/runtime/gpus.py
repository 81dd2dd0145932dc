"""GPUs: those that trainings run on, and the distribution strategy over them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from kbatch.errors import SearchError
from kbatch.runtime.device import holds_gpu

_left: list[Any] = []  # hidden from this process by `leave_to_workers`


def replicas() -> int:
    """Return how many devices train at once: those of the strategy whose scope is entered, or 1."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def strategy_devices() -> tuple[str, ...]:
    """Return the devices of the strategy whose scope is entered, such as `"GPU:1"`.

    It is empty where one device trains, which is Keras' own choice.
    """
    if replicas() == 1:
        return ()
    names = tf.distribute.get_strategy().extended.worker_devices
    return tuple(name.rpartition("device:")[2] for name in names)


def entered_strategy() -> Any:
    """Return the strategy whose scope is entered, or `None`."""
    return tf.distribute.get_strategy() if tf.distribute.has_strategy() else None


def check_strategy(strategy: Any) -> None:
    """Refuse a strategy with which a training cannot be measured."""
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
    return list(_left) or list(tf.config.get_visible_devices("GPU"))


def leave_gpus_to_workers() -> None:
    """Hide the GPUs from TensorFlow in this process, so that worker processes can take them.

    TensorFlow takes nearly all of a GPU's memory when it starts, and never gives it back.
    """
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
