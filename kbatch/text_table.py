"""Text tables: tables as plain text, laid out by rich, without colours."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

UNLIMITED = 10_000  # columns: no row is ever folded


def columns(
    headings: Sequence[str], rows: Sequence[Sequence[object]], left: Collection[str] = ()
) -> str:
    """Return aligned columns below their headings, whatever the width of the terminal.

    Args:
        headings: The columns' headings.
        rows: The cells of each row; each is shown by its `str()`.
        left: Headings of the columns that are aligned to the left. The others are numbers and are
            aligned to the right.

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
