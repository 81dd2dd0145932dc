"""Standard streams of a command that was begun without them."""

from __future__ import annotations

import os
import sys


def open_missing() -> None:
    """Put the null device where a standard stream is closed.

    The next file would take its number, and what a library prints would be written into that file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest number that is free is the stream's own.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
