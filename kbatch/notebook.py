"""What notebooks show below a cell: tables of HTML, and a line that changes in place."""

from __future__ import annotations

import html
from collections.abc import Sequence


def table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str] = ()
) -> str:
    """Return an HTML table with notes below it; only its first column is aligned to the left.

    >>> table(["batch"], [[32]], ["1 & 2"]).split("<tbody>")[1]
    '<tr><td style="text-align: left">32</td></tr></tbody></table><p>1 &amp; 2</p>'
    """
    head = "".join(_cell("th", heading, position) for position, heading in enumerate(headings))
    body = "".join(
        "<tr>"
        + "".join(_cell("td", value, position) for position, value in enumerate(row))
        + "</tr>"
        for row in rows
    )
    below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _cell(tag: str, value: object, position: int) -> str:
    side = "right" if position else "left"
    return f'<{tag} style="text-align: {side}">{html.escape(str(value))}</{tag}>'


class Line:
    """A line of text that is written over while a cell runs.

    Example:
    ```python
    line = Line()
    line.show("1 of 2 s")
    line.clear()
    ```
    """

    def __init__(self) -> None:
        self._text = ""

    def show(self, text: str) -> None:
        """Write another text over the line; the same text is not written again."""
        if text != self._text:
            print(f"\r{text:<{len(self._text)}}", end="", flush=True)
            self._text = text

    def clear(self) -> None:
        """Empty the line, for the next output."""
        if self._text:
            print("\r" + " " * len(self._text), end="\r", flush=True)
            self._text = ""
