"""Text tables as text, Markdown, HTML and CSV, and the console that shows them."""

from __future__ import annotations

import errno
import html
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kbatch.plain_text import CONTROLS, markdown

if TYPE_CHECKING:
    import pandas as pd

UNLIMITED = 10_000  # columns: no row is ever folded
FORMULA = ("=", "+", "-", "@", "\t")  # how a cell begins that a spreadsheet computes


@dataclass(frozen=True)
class TextTable:
    """A table of texts and numbers, shown as plain text, Markdown or HTML.

    Example:
    >>> table = TextTable(["policy", "batch"], [["float32", 8], ["mixed_float16", 16]], ["policy"])
    >>> print(table.text(["of 2 policies"]))
    policy         batch
    float32            8
    mixed_float16     16
    of 2 policies
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    left: Collection[str] = ()  # the headings of columns of words; others are aligned right

    def text(self, notes: Sequence[str] = ()) -> str:
        """Return aligned columns with notes below, whatever the width of the terminal."""
        table = Table(box=None, pad_edge=False, padding=(0, 1))
        for heading in self.headings:
            table.add_column(Text(heading), justify="left" if heading in self.left else "right")
        for row in self.rows:
            table.add_row(*(Text(str(cell)) for cell in row))
        return "\n".join([rendered(table, UNLIMITED), *notes])

    def markdown(self) -> str:
        """Return the table as Markdown, its cells as they are: numbers keep their zeros."""
        import tabulate

        rows = [[_in_markdown(cell) for cell in row] for row in self.rows]
        headings = list(map(_in_markdown, self.headings))
        return str(tabulate.tabulate(rows, headings, tablefmt="pipe", disable_numparse=True))

    def html(self, notes: Sequence[str] = ()) -> str:
        """Return the table as HTML with notes below; only its first column is aligned left.

        >>> TextTable(["batch"], [[32]]).html(["1 & 2"]).split("<tbody>")[1]
        '<tr><td style="text-align: left">32</td></tr></tbody></table><p>1 &amp; 2</p>'
        """
        head = _html_row("th", self.headings)
        body = "".join(_html_row("td", row) for row in self.rows)
        below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{below}"


def _in_markdown(cell: object) -> str:
    return markdown(str(cell)).replace("|", "\\|")


def _html_row(tag: str, cells: Sequence[object]) -> str:
    sides = ["left", *["right"] * len(cells)]
    texts = (
        f'<{tag} style="text-align: {side}">{html.escape(str(cell))}</{tag}>'
        for side, cell in zip(sides, cells, strict=False)
    )
    return f"<tr>{''.join(texts)}</tr>"


def csv_of(frame: pd.DataFrame) -> str:
    """Return a table as CSV in which no text is a formula of a spreadsheet: it begins with `'`.

    Example:
    >>> import pandas as pd
    >>> print(csv_of(pd.DataFrame({"recipe": ["=1+1", "a"], "score": [-0.5, 1.0]})), end="")
    recipe,score
    '=1+1,-0.5
    a,1.0
    """
    safe = frame.map(_cell)
    safe.columns = [_cell(each) for each in frame.columns]
    return str(safe.to_csv(index=False))


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return f"'{value}" if value.startswith(FORMULA) else value


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
