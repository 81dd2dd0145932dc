"""Options of the command `kbatch recompute`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from kbatch.command_option import WHOLE


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `kbatch recompute`, which `--help` explains."""

    build: Annotated[
        str,
        typer.Argument(
            help="module:function of the function that returns the model, importable from here."
        ),
    ]
    shape: Annotated[
        str | None,
        typer.Option(
            help="Shape of one example, such as 224,224,3, if the model has no keras.Input."
        ),
    ] = None
    policy: Annotated[
        Literal["float32", "mixed_float16", "mixed_bfloat16"], typer.Option(help="Dtype policy.")
    ] = "float32"
    optimizer: Annotated[
        Literal["sgd", "adam"],
        typer.Option(
            help="Optimizer whose slots take memory; of another one, the nearest of these."
        ),
    ] = "adam"
    batch_size: Annotated[
        int, typer.Option(**WHOLE, help="Examples per step, for which bytes are given.")
    ] = 32
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Such as 8GB: the fastest plan that fits is shown, and the largest batch of each."
        ),
    ] = None
    figure: Annotated[str, typer.Option(help="PNG file for peak against time.")] = "recompute.png"
    plan: Annotated[str | None, typer.Option(help="JSON file for the plan that is shown.")] = None
