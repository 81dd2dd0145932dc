"""Quiet import: hides the lines that TensorFlow prints from C++ while it is imported.

TensorFlow prints them before any log level takes effect.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def turned_away() -> Iterator[None]:
    """Hold back the standard error of this process inside the `with` block.

    If the block raises an exception, the lines are printed after all.

    Example:
    ```python
    with quiet_import.turned_away():
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
