"""The console that commands print to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 150  # columns where there is no terminal


def new_console() -> Console:
    """Return a console that prints names as they are, also those that look like rich's markup."""
    from rich.console import Console

    console = Console(markup=False, emoji=False)
    return console if console.is_terminal else Console(width=WIDTH, markup=False, emoji=False)
