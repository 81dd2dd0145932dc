"""The strategy: the devices that one training runs on at once, as `tf.distribute` has them."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from kbatch.errors import SearchError


def replicas() -> int:
    """Return how many devices train at once: those of the strategy whose scope is entered, or 1."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def devices() -> tuple[str, ...]:
    """Return the devices of the strategy whose scope is entered, such as `"GPU:1"`.

    It is empty where one device trains, which is Keras' own choice.
    """
    if replicas() == 1:
        return ()
    names = tf.distribute.get_strategy().extended.worker_devices
    return tuple(name.rpartition("device:")[2] for name in names)


def entered() -> Any:
    """Return the strategy whose scope is entered, or `None`."""
    return tf.distribute.get_strategy() if tf.distribute.has_strategy() else None


def check(strategy: Any) -> None:
    """Refuse a strategy with which a training cannot be measured.

    Args:
        strategy: A `tf.distribute.Strategy`, or `None`.

    Raises:
        SearchError: If it is any but a `MirroredStrategy`.
    """
    if strategy is not None and type(strategy) is not tf.distribute.MirroredStrategy:
        raise SearchError(
            "Several devices must be those of a tf.distribute.MirroredStrategy",
            type(strategy).__name__,
            'Use tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"]), or no strategy',
        )


def check_outside() -> None:
    """Refuse a search inside the scope of a strategy, which KerasTuner would leave half-way.

    Raises:
        SearchError: If a scope is entered.
    """
    if entered() is not None:
        raise SearchError(
            "A search must be called outside of a strategy's scope",
            f"inside that of a {type(entered()).__name__}",
            "Give the strategy to the tuner: distribution_strategy=…",
        )


def scope(strategy: Any) -> AbstractContextManager[Any]:
    """Return the scope of a strategy that `check` has passed; an empty one for `None`."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def check_sizes(batch_sizes: list[int]) -> None:
    """Refuse batches and passes that the devices cannot share equally.

    Args:
        batch_sizes: List of integers, examples per pass over all devices.

    Raises:
        SearchError: If one is no multiple of the number of devices.
    """
    count = replicas()
    uneven = [size for size in dict.fromkeys(batch_sizes) if size % count]
    if uneven:
        raise SearchError(
            f"Batch sizes, the baseline's too, must be multiples of the {count} devices",
            ", ".join(map(str, uneven)),
            f"Pass such as {even(uneven[0])}: Space(batch_size=…, "
            "baseline=kbatch.Recipe(batch_size=…))",
        )


def even(size: int) -> int:
    """Return the next multiple of the number of devices."""
    return -(-size // replicas()) * replicas()
