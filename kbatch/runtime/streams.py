"""Streams: standard output and error, open and quiet."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


def open_missing() -> None:
    """Put the null device where a standard stream is closed.

    The next file would take its number, and what a library prints would be written into that file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest number that is free is the stream's own.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


@contextmanager
def turned_away() -> Iterator[None]:
    """Hold back the standard error of this process inside the `with` block.

    If the block raises an exception, the lines are printed after all.

    Example:
    ```python
    with streams.turned_away():
        import tensorflow as tf
    ```
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    own = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(own, held.read())
            raise
        finally:
            os.dup2(own, 2)
            os.close(own)
