"""Options of the command `kbatch export`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kbatch.command_option import WHOLE
from kbatch.errors import SearchError


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `kbatch export`, which `--help` explains."""

    directory: Annotated[str, typer.Argument(help="Folder of a search, or what --out was.")]
    best: Annotated[
        bool, typer.Option("--best", help="The best recipe; so it is without an option.")
    ] = False
    trial: Annotated[
        int | None, typer.Option(**WHOLE, help="The recipe of a trial, by its number.")
    ] = None
    baseline: Annotated[bool, typer.Option("--baseline", help="The recipe of the baseline.")] = (
        False
    )
    out: Annotated[
        str | None,
        typer.Option(
            show_default="standard output", help="File to write, which must not exist yet."
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Write over the file of --out if it exists.")
    ] = False

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            SearchError: If more than one recipe is named, or --force stands without --out.
        """
        named = [
            *(["--best"] if self.best else []),
            *([f"--trial {self.trial}"] if self.trial is not None else []),
            *(["--baseline"] if self.baseline else []),
        ]
        if len(named) > 1:
            raise SearchError(
                "One recipe must be named to export", " and ".join(named), "Leave the others out"
            )
        if self.force and self.out is None:
            raise SearchError(
                "--force must come with --out", "--force alone", "Name the file with --out"
            )
