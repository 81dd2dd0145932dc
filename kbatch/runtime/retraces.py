"""Retraces: many models in one process are traced anew, which TensorFlow warns of."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf


class _Filter(logging.Filter):
    """Leaves out TensorFlow's warning of retracing."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "triggered tf.function retracing" not in record.getMessage()


@contextmanager
def expected() -> Iterator[None]:
    """Leave out TensorFlow's warning of retracing inside of this context: each model is new."""
    without = _Filter()
    tf.get_logger().addFilter(without)
    try:
        yield
    finally:
        tf.get_logger().removeFilter(without)
