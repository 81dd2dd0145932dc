"""The layout of generated code: calls and comments of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

COLUMNS = 100
INDENT = 4


def call(function: str, arguments: Sequence[str], before: str = "", indent: int = INDENT) -> str:
    """Return a call on one line if it fits, else with one argument a line.

    Args:
        function: String, what is called.
        arguments: The arguments, each as text.
        before: String before the call, such as `"model = "`.
        indent: Integer, columns that the text will be indented by. Defaults to `4`.

    Example:
    >>> call("keras.optimizers.SGD", ["0.1", "momentum=0.9"], "optimizer = ")
    'optimizer = keras.optimizers.SGD(0.1, momentum=0.9)'
    """
    return bracketed(f"{before}{function}(", arguments, ")", indent)


def bracketed(opening: str, items: Sequence[str], closing: str, indent: int = INDENT) -> str:
    """Return items in brackets, as a formatter breaks them.

    Args:
        opening: String up to the opening bracket.
        items: The items, each as text of one line or more.
        closing: The closing bracket and what follows.
        indent: Integer, columns that the text will be indented by. Defaults to `4`.
    """
    inside = ", ".join(items)
    flat = f"{opening}{inside}{closing}"
    if indent + len(flat) <= COLUMNS and "\n" not in flat:
        return flat
    if 2 * INDENT + len(inside) <= COLUMNS and "\n" not in inside:
        return f"{opening}\n    {inside}\n{closing}"
    return "\n".join([opening, *(textwrap.indent(f"{item},", "    ") for item in items), closing])


def comment(text: str, indent: int = INDENT) -> str:
    """Return a sentence as a comment.

    Args:
        text: The sentence.
        indent: Integer, columns that the text will be indented by. Defaults to `4`.

    Example:
    >>> print(comment("Left out: recompute."))
    # Left out: recompute.
    """
    lines = textwrap.wrap(printable(text), COLUMNS - indent - 2)
    return "\n".join(f"# {line}" for line in lines)


def docstring(paragraphs: Sequence[str]) -> str:
    """Return the docstring of a module.

    Args:
        paragraphs: Its first line and what follows.
    """
    told = [textwrap.fill(printable(each), COLUMNS) for each in paragraphs]
    text = "\n\n".join(told).replace('"""', "'''")
    raw = "r" if "\\" in text else ""
    return f'{raw}"""{text}\n"""'


def printable(text: str) -> str:
    r"""Return a text with the escapes of characters that do not belong into code.

    Example:
    >>> printable("a\x00b")
    'a\\x00b'
    """
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )
