"""Text tables and the console that shows them."""

from __future__ import annotations

import errno
import io
from collections.abc import Collection, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kbatch.plain_text import CONTROLS

UNLIMITED = 10_000  # columns: no row is ever folded


def columns(
    headings: Sequence[str], rows: Sequence[Sequence[object]], left: Collection[str] = ()
) -> str:
    """Return aligned columns below their headings, whatever the width of the terminal.

    Example:
    >>> print(columns(["policy", "batch"], [["float32", 8], ["mixed_float16", 16]], ["policy"]))
    policy         batch
    float32            8
    mixed_float16     16
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for heading in headings:
        table.add_column(Text(heading), justify="left" if heading in left else "right")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    return rendered(table, UNLIMITED)


def rendered(table: Table, width: int) -> str:
    """Return a table of rich's as plain text, folded to a width in columns."""
    page = io.StringIO()
    console = Console(file=page, width=width, color_system=None, force_jupyter=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in page.getvalue().rstrip().splitlines())


class PlainConsole(Console):
    """A console of rich's without markup, emoji and control characters of the texts."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects; names of files and texts of records may hold what commands a terminal."""
        super().print(*map(_plain, objects), **options)

    def on_broken_pipe(self) -> None:
        """Raise what `print` would, where rich ends the process."""
        raise BrokenPipeError(errno.EPIPE, "the reader of standard output has left")


def _plain(value: Any) -> Any:
    return CONTROLS.sub("", value) if isinstance(value, str) else value
