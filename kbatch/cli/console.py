"""The console that commands print to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 150  # columns where there is no terminal


def new_console() -> Console:
    """Return a console that prints names as they are, also those that look like rich's markup."""
    from kbatch.text_table import PlainConsole

    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(width=WIDTH)


def print_text(text: str) -> None:
    """Print a text as it is.

    Args:
        text: String, with the end of its last line.
    """
    print(text, end="", flush=True)
