"""Options of the command `kbatch advise`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kbatch.command_option import NUMBER, WHOLE


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `kbatch advise`, which `--help` explains."""

    directory: Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            help="Folder of a search. Its best recipe and its baseline are looked at.",
        ),
    ] = None
    recipe: Annotated[
        str | None,
        typer.Option(
            show_default="those of the folder",
            help="Fields of a recipe as JSON, such as '{\"batch_size\": 512}'; others have their "
            "defaults.",
        ),
    ] = None
    build: Annotated[
        str | None,
        typer.Option(
            help="module:function of the function that returns the model, importable from here."
        ),
    ] = None
    max_batch: Annotated[
        int | None, typer.Option(**WHOLE, help="Examples that fit in one pass (kbatch max-batch).")
    ] = None
    examples: Annotated[
        int | None,
        typer.Option(**WHOLE, show_default="the folder's", help="Number of training examples."),
    ] = None
    epochs: Annotated[
        float | None,
        typer.Option(
            **NUMBER,
            show_default="the length of a trial",
            help="Passes over the data that you plan.",
        ),
    ] = None
    devices: Annotated[
        int, typer.Option(**WHOLE, help="Devices that share each forward and backward pass.")
    ] = 1
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="The model has pretrained weights.")
    ] = False
