"""The command `kbatch report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from kbatch.cli.console import new_console
from kbatch.cli.failure import told_plainly
from kbatch.runtime import signals


def report(
    directory: Annotated[str, typer.Argument(help="Folder of a search, or what --out was.")],
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
) -> None:
    """Write the page, tables and figures of a search again. Needs no TensorFlow."""
    with told_plainly():
        with signals.at_once():
            from kbatch.page import page
            from kbatch.results.report import report as report_of
            from kbatch.results.report import write

        files = [*write(directory), page.write(directory)]
        # Names of files and hyperparameters may look like rich's markup.
        new_console().print(
            str(report_of(directory)), highlight=False, markup=False, soft_wrap=True
        )
        print("Written: " + ", ".join(str(file) for file in files))
        if open_page:
            _open(files[-1])


def _open(page: Path) -> None:
    address = page.resolve().as_uri()
    if not webbrowser.open(address):
        print(f"There is no browser here. Open {address}")
