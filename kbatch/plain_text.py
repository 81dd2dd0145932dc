"""Plain text of what came from files: it commands no terminal, no page and no spreadsheet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# C0 without tab and new line, DEL, C1, and what turns the direction of writing
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LINK = re.compile(r"\[(?=[^\]]*\][(\[:])")  # the bracket that begins a link, or names its target
LONGEST = 2_000  # characters of a sentence on the screen
FORMULA = ("=", "+", "-", "@", "\t")  # how a cell begins that a spreadsheet computes


def without_controls(value: Any) -> Any:
    r"""Return what JSON holds with texts and names without control characters.

    Example:
    >>> without_controls({"a\x1b[2J": ["\x07b", 1]})
    {'a[2J': ['b', 1]}
    """
    if isinstance(value, str):
        return CONTROLS.sub("", value)
    if isinstance(value, list):
        return [without_controls(each) for each in value]
    if isinstance(value, dict):
        return {without_controls(name): without_controls(each) for name, each in value.items()}
    return value


def one_line(text: str) -> str:
    r"""Return a text on one line, without control characters.

    Example:
    >>> one_line("a\n# b\x1b[31m")
    'a # b[31m'
    """
    return " ".join(CONTROLS.sub("", text).split())


def sentence(text: str) -> str:
    """Return a text on one line, without control characters and without the middle of a long one.

    Example:
    >>> len(sentence("x" * 120_000))
    2000
    """
    line = one_line(text)
    if len(line) <= LONGEST:
        return line
    half = LONGEST // 2
    return f"{line[: half - 3]} … {line[-half:]}"


def markdown(text: str) -> str:
    r"""Return a text as a part of a line of Markdown: no HTML, no link, no new line.

    Example:
    >>> print(markdown("<img src=x>\n# [a](b) -> c"))
    &lt;img src=x> # \[a](b) -> c
    """
    return LINK.sub(r"\\[", one_line(text).replace("<", "&lt;"))


def csv_of(frame: pd.DataFrame) -> str:
    """Return a table as CSV in which no text is a formula of a spreadsheet: it begins with `'`.

    Args:
        frame: `pandas.DataFrame`.

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
