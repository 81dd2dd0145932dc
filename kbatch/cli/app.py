"""The command line: `kbatch search`, `cats-vs-dogs`, `max-batch`, `recompute`, `report` and more.

TensorFlow is imported only when a command needs it.
"""

from __future__ import annotations

from typing import Annotated

import typer

import kbatch
from kbatch.cli.advise import advise
from kbatch.cli.cats_vs_dogs import cats_vs_dogs
from kbatch.cli.compare import compare
from kbatch.cli.doctor import doctor
from kbatch.cli.export import export
from kbatch.cli.failure import PlainGroup
from kbatch.cli.max_batch import max_batch
from kbatch.cli.recompute import recompute
from kbatch.cli.report import report
from kbatch.cli.search import search
from kbatch.cli.study import study

QUESTION = (
    "Which way of training this model on this device buys the most validation accuracy per second?"
)

app = typer.Typer(
    cls=PlainGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=QUESTION,
)


def _print_version(given: bool) -> None:
    if given:
        print(f"kbatch {kbatch.__version__}")
        raise typer.Exit


@app.callback(help=QUESTION)
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version and leave.",
        ),
    ] = False,
) -> None:
    """Run one of the commands."""


app.command("search")(search)
app.command("cats-vs-dogs")(cats_vs_dogs)
app.command("max-batch")(max_batch)
app.command("recompute")(recompute)
app.command("report")(report)
app.command("compare")(compare)
app.command("export")(export)
app.command("study")(study)
app.command("advise")(advise)
app.command("doctor")(doctor)
