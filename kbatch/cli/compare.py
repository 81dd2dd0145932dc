"""The command `kbatch compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from kbatch.cli.console import print_text
from kbatch.cli.failure import told_plainly
from kbatch.runtime import signals


def compare(
    directory_a: Annotated[str, typer.Argument(help="Folder of a search, or what --out was.")],
    directory_b: Annotated[str, typer.Argument(help="Folder of the other search.")],
) -> None:
    """Compare two searches: on two machines, or before and after a change. Needs no TensorFlow."""
    with told_plainly():
        with signals.at_once():
            from kbatch.results.comparison import compare as compared
        print_text(f"{compared(directory_a, directory_b)}\n")
