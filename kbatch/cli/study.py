"""The command `kbatch study`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from kbatch.case_study import sources
from kbatch.cli.console import new_console
from kbatch.cli.failure import told_plainly
from kbatch.command_option import WHOLE
from kbatch.errors import SearchError
from kbatch.runtime import memory_limit as runtime_memory_limit
from kbatch.runtime import signals, streams
from kbatch.studies.setting import Wishes

NAMES = Literal["optimizers", "augmentation", "techniques", "throughput", "generalisation"]


def study(
    name: Annotated[NAMES, typer.Argument(help="The published table to make again.")],
    out: Annotated[str, typer.Option(help="Folder of the results; the same command resumes.")],
    data: Annotated[
        str,
        typer.Option(help="'drawn', 'tfds', or a folder or zip with two folders of photographs."),
    ] = "drawn",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A few minutes: fewer and smaller pictures, no claims."),
    ] = False,
    image_size: Annotated[
        int | None, typer.Option(**WHOLE, show_default="as published", help="Height and width.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(**WHOLE, show_default="as published", help="Passes.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(**WHOLE, show_default="3", help="Seeds of every cell.")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Bytes that the device may use, such as 8GB.")
    ] = None,
) -> None:
    """Make a published table on batch size again, on this machine and these pictures.

    Each cell is a training that is kept: the same command goes on after Ctrl-C. The page says
    beside each published claim whether it holds here.
    """
    with told_plainly(stopped=f" What was trained is kept in {out}: the same command goes on."):
        folder = Path(out)
        sources.check(data)
        limit_bytes = None if memory_limit is None else runtime_memory_limit.bytes_of(memory_limit)
        wishes = Wishes(image_size=image_size, epochs=epochs, seeds=seeds, memory_limit=limit_bytes)
        _make(folder)
        with signals.at_once(), streams.turned_away():
            from kbatch.driver.driver import import_tensorflow, start_tensorflow
            from kbatch.studies import study_run
            from kbatch.studies.catalogue import STUDIES
        chosen = STUDIES[name]
        setting = wishes.applied(
            chosen.quick if quick else chosen.published, chosen.takes, chosen.least_image_size
        )
        if "memory_limit" not in chosen.takes:  # else each cell has a process of its own
            import_tensorflow()
            start_tensorflow()
        console = new_console()
        pictures = sources.pictures(data, setting.image_size)
        facts = [f"command: kbatch {shlex.join(sys.argv[1:])}"]
        files = study_run.run(chosen, setting, pictures, folder, facts, console)
        console.print(files[-1].read_text(), highlight=False, soft_wrap=True)
        console.print("Written: " + ", ".join(map(str, files)), highlight=False, soft_wrap=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise SearchError(
            "--out must be a folder that can be written", f"{folder}: {error}", "Pass another"
        ) from error
