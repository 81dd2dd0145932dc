"""The console that commands print to."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 150  # columns where there is no terminal


def new_console() -> Console:
    """Return a console that prints names as they are, also those that look like rich's markup."""
    from rich.console import Console

    console = Console(markup=False, emoji=False)
    return console if console.is_terminal else Console(width=WIDTH, markup=False, emoji=False)


def print_text(text: str) -> None:
    """Print a text as it is. A reader that has left, such as `head`, is no error.

    Args:
        text: String, with the end of its last line.
    """
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        # Python would complain when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
