"""Garbage: Python's collector, which looks only at what a search has made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def freeze() -> None:
    """Let the collector pass over all objects of now, for good.

    TensorFlow and Keras alone hold a million objects, and each trial collects several times.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def frozen() -> Iterator[None]:
    """Let the collector pass over the objects of before inside the `with` block."""
    if gc.get_freeze_count():  # somebody else has frozen what is his
        yield
        return
    freeze()
    try:
        yield
    finally:
        gc.unfreeze()
