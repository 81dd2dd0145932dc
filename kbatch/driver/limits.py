"""The largest batches of a task's model, measured before this process uses TensorFlow."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from kbatch.driver.options import PROJECT, CommonOptions
from kbatch.driver.task import Task
from kbatch.errors import NoMemoryLimitError
from kbatch.memory._max_batch import Row, Table
from kbatch.memory._micro_batch import MaxBatches
from kbatch.memory._table import max_batches
from kbatch.records import project
from kbatch.runtime import device_memory
from kbatch.runtime.nvidia import may_use_card
from kbatch.space import Space


def of_options(
    options: CommonOptions, task: Task, space: Space, folder: Path, console: Console
) -> MaxBatches:
    """Return the limit of `--max-batch`: none, a number, or a table that is measured once."""
    if options.max_batch != "auto":
        return options.max_batch_number()
    facts = project.load_facts(folder / PROJECT / project.FOLDER) or {}
    table = Table.of_project(folder / PROJECT)
    if table is not None:
        return table
    if "max_batch" in facts and facts["max_batch"] is None:
        return None  # the project was begun on a machine without a limit
    if not has_limit():
        console.print(
            "This CPU has no memory limit, so batch sizes are not checked beforehand "
            "(see `kbatch doctor`).",
            style="dim",
            highlight=False,
            soft_wrap=True,
        )
        return None
    try:
        table = _table(task, space, console)
    except NoMemoryLimitError:
        console.print(
            "TensorFlow has no device with a memory limit here, so batch sizes are not checked "
            "beforehand.",
            style="dim",
            highlight=False,
            soft_wrap=True,
        )
        return None
    console.print(str(table), highlight=False, soft_wrap=True)
    return table


def _table(task: Task, space: Space, console: Console) -> Table:
    """Measure the table, and print each row as soon as it is known."""

    def show(row: Row) -> None:
        console.print(f"  {row}", highlight=False)

    with console.status("Finding the largest batch of every policy and optimizer …"):
        return max_batches(
            task.spec(),
            task.example(),
            space=space,
            ceiling=max(space.batch_size),
            on_row=show,
        )


def has_limit() -> bool:
    """Return whether the training device has a memory limit, without asking TensorFlow."""
    return may_use_card() or os.environ.get(device_memory.CPU_LIMIT, "").isdigit()
