"""Limits: the largest batches of the case study's model, found before TensorFlow begins in this process."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from kbatch.case_study.options import PROJECT, Options
from kbatch.device import limit
from kbatch.device.card import has_card
from kbatch.errors import NoMemoryLimitError
from kbatch.memory._max_batch_table import Row, Table
from kbatch.memory._micro_batch import MaxBatches
from kbatch.memory._table import max_batches
from kbatch.records import fingerprint
from kbatch.space import Space


def model(name: str, image_size: int) -> Any:
    """The case study's model of that name."""
    from kbatch.case_study.models import MODELS

    return MODELS[name](image_size)


def of_options(options: Options, space: Space, folder: Path, console: Console) -> MaxBatches:
    """What --max-batch says: nothing, a number, or the table, which the project keeps and is not measured again.

    Args:
        options: What was asked for.
        space: The space of the search.
        folder: Folder of the results.
        console: Where to print.
    """
    if options.max_batch != "auto":
        return options.max_batch_number()
    facts = fingerprint.load(folder / PROJECT / fingerprint.FOLDER) or {}
    table = Table.of_project(folder / PROJECT)
    if table is not None:
        return table
    if "max_batch" in facts and facts["max_batch"] is None:
        return None  # the project was begun where there was no limit
    if not has_limit():
        console.print(
            "This CPU has no memory limit, so batch sizes are not checked beforehand (see `kbatch doctor`).",
            style="dim",
            highlight=False,
        )
        return None

    try:
        table = _table(options, space, console)
    except NoMemoryLimitError:
        console.print(
            "TensorFlow has no device with a memory limit here, so batch sizes are not checked beforehand.",
            style="dim",
            highlight=False,
        )
        return None
    console.print(str(table), highlight=False)
    return table


def _table(options: Options, space: Space, console: Console) -> Table:
    def show(row: Row) -> None:
        console.print(f"  {row}", highlight=False)

    with console.status("Finding the largest batch of every policy and optimizer …"):
        shape = (options.image_size, options.image_size, 3)
        build = functools.partial(model, options.model, options.image_size)
        loss, metrics, most = "binary_crossentropy", ["accuracy"], max(space.batch_size)
        return max_batches(
            build,
            shape,
            space=space,
            ceiling=most,
            loss=loss,
            metrics=metrics,
            seed=options.seed,
            on_row=show,
        )


def has_limit() -> bool:
    """Whether the device that will train has a memory limit, asked without TensorFlow."""
    return has_card() or os.environ.get(limit.CPU_LIMIT, "").isdigit()
