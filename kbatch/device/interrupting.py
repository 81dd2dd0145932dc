"""Interrupting: a Ctrl-C that Python would lose because it came while an object was being cleared away."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

AGAIN_SECONDS = 0.05  # by then the object is gone; if not, the next one is taken up in the same way


@contextmanager
def never_lost() -> Iterator[None]:
    """Inside, a `KeyboardInterrupt` that is raised in a `__del__` or a callback, where Python only prints it, is raised again.

    TensorFlow holds the main thread in C++ during a step, and a Ctrl-C waits there for the next line of Python, which may
    be one of its own `__del__`.
    """
    before = sys.unraisablehook

    def hook(lost: Any) -> None:
        if lost.exc_type is KeyboardInterrupt:
            threading.Timer(AGAIN_SECONDS, _thread.interrupt_main).start()  # raised in here it would be lost as well
        else:
            before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
