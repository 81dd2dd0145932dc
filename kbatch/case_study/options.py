"""Options of `kbatch cats-vs-dogs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from kbatch.command_option import NUMBER, WHOLE
from kbatch.driver import options
from kbatch.errors import SearchError

DEFAULT_SECONDS = 8.0
CHANCE = 0.5  # of two classes of equal size


@dataclass(frozen=True, kw_only=True)
class CaseOptions(options.CommonOptions):
    """The options of `kbatch cats-vs-dogs`, which `--help` explains."""

    data: Annotated[
        str,
        typer.Option(
            help="'drawn' (by code, no download), 'tfds', or a folder or zip with two folders of "
            "photographs, 100 of each class at least."
        ),
    ] = "drawn"
    image_size: Annotated[int, typer.Option(**WHOLE, help="Height and width in pixels.")] = 32
    model: Annotated[
        Literal["cnn", "small-resnet"],
        typer.Option(help="'cnn' is the published case study's; it learns in longer trials."),
    ] = "small-resnet"
    target: Annotated[
        float | None,
        typer.Option(**NUMBER, help="Accuracy that is good enough: a trial ends once it is held."),
    ] = None
    seed: Annotated[
        int, typer.Option(**WHOLE, help="Seed of drawn data, tuner, weights and data order.")
    ] = 0
    out: Annotated[
        str,
        typer.Option(
            help="Folder of records, tables, figures and report; the same command resumes."
        ),
    ] = "kbatch-cats-vs-dogs"

    def check(self) -> None:
        """Refuse options that make no sense."""
        super().check()
        if self.target is not None and not CHANCE < self.target <= 1:
            raise SearchError(
                f"--target must be an accuracy above chance, {CHANCE}, and at most 1",
                self.target,
                "Pass 0.8, say",
            )
