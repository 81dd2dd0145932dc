"""The GPUs that trainings use, which a process may leave to its workers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kbatch.device import gpu_in_use
from kbatch.errors import SearchError

_left: list[Any] = []  # hidden from this process by `leave_to_workers`


def of_trainings() -> list[Any]:
    """Return the GPUs that trainings of this process or of its workers can use."""
    return list(_left) or list(tf.config.get_visible_devices("GPU"))


def leave_to_workers() -> None:
    """Hide the GPUs from TensorFlow in this process, so that worker processes can take them.

    TensorFlow takes nearly all of a GPU's memory when it starts, and never gives it back.

    Raises:
        SearchError: If TensorFlow in this process holds a GPU already.
    """
    if gpu_in_use.is_held():
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


def check_not_left() -> None:
    """Refuse a training in this process whose GPUs were left to workers.

    Raises:
        SearchError: If they were.
    """
    if _left:
        raise SearchError(
            "A training must have the GPU of this process",
            "a process whose hypermodel left it to its workers",
            "Restart Python, or train with isolated=True too",
        )
