"""HTML tables for notebooks, which show the value of a cell's last expression."""

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
