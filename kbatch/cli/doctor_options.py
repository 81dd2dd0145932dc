"""Options of the command `kbatch doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from kbatch.cli import search_options
from kbatch.command_option import WHOLE
from kbatch.errors import SearchError


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `kbatch doctor`, which `--help` explains."""

    model: Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            help="module:function of your build(hp), importable from here, to check what kbatch "
            "assumes of it; needs --data.",
        ),
    ] = None
    data: Annotated[str | None, search_options.DATA] = None
    image_size: Annotated[int | None, search_options.IMAGE_SIZE] = None
    split: Annotated[str, search_options.SPLIT] = "60,20,20"
    labels: Annotated[Literal["numbers", "one-hot"] | None, search_options.LABELS] = None
    values: Annotated[str | None, search_options.VALUES] = None
    loss: Annotated[str | None, search_options.LOSS] = None
    metric: Annotated[str | None, search_options.METRIC] = None
    seed: Annotated[int, typer.Option(**WHOLE, help="Seed of the split and the weights.")] = 0
    gpu: Annotated[bool, typer.Option("--gpu", help="Check the GPU too: about two minutes.")] = (
        False
    )

    def check(self) -> None:
        """Refuse a model without data, and data without a model.

        Raises:
            SearchError: If one of them is missing.
        """
        if (self.model is None) == (self.data is None):
            return
        received = f"--data {self.data}" if self.model is None else self.model
        raise SearchError(
            "A model must be checked with its data",
            f"{received} alone",
            "Pass both: kbatch doctor mymodel:build --data FOLDER",
        )

    def search(self) -> search_options.Options:
        """Return the options of the search that is checked; its horizon is of no concern."""
        return search_options.Options(
            model=self.model or "",
            data=self.data or "",
            image_size=self.image_size,
            split=self.split,
            labels=self.labels,
            values=self.values,
            loss=self.loss,
            metric=self.metric,
            seed=self.seed,
            epochs=search_options.DEFAULT_EPOCHS,
            axes={},
        )
