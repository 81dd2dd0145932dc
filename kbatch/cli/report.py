"""The command `kbatch report`."""

from __future__ import annotations

from typing import Annotated

import typer

from kbatch.cli.console import new_console
from kbatch.cli.failure import told_plainly
from kbatch.runtime import ctrl_c


def report(
    directory: Annotated[str, typer.Argument(help="Folder of a search, or what --out was.")],
) -> None:
    """Write trials.csv, report.md and the figures of a search again. Needs no TensorFlow."""
    with told_plainly():
        with ctrl_c.at_once():
            from kbatch.results.report import report as report_of
            from kbatch.results.report import write

        files = write(directory)
        # Names of files and hyperparameters may look like rich's markup.
        new_console().print(
            str(report_of(directory)), highlight=False, markup=False, soft_wrap=True
        )
        print("Written: " + ", ".join(str(file) for file in files))
