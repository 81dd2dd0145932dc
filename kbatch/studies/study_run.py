"""The run of a study: its cells one after another, with progress, and its page at the end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from kbatch.data.examples import Examples
from kbatch.outcome import SCORED
from kbatch.records.project import Project
from kbatch.records.store import Record
from kbatch.results.duration import alike_seconds, time_words
from kbatch.runtime import device_memory
from kbatch.studies import study_page, techniques
from kbatch.studies.cell import Cell
from kbatch.studies.largest_batches import largest_batches
from kbatch.studies.measured import Measured
from kbatch.studies.results import frame_of
from kbatch.studies.setting import Setting
from kbatch.studies.study import Study
from kbatch.studies.trainings import Trainings

PLACE = 1.0  # seconds that stand for the equal time until it is known


def run(
    study: Study,
    setting: Setting,
    pictures: Examples,
    folder: Path,
    facts: Sequence[str],
    console: Console,
) -> list[Path]:
    """Train the cells that the folder does not have, and write the page; return the files.

    Args:
        study: The study.
        setting: Its setting.
        pictures: The data.
        folder: Folder of the results.
        facts: Sentences for the page, such as the command.
        console: Console to print to.

    Raises:
        KbatchError: If the folder belongs to other data, another setting or another device.
    """
    project = Project(folder)
    with project.hold():
        trainings = Trainings(project, setting, pictures)
        project.agree(
            {
                "study": study.name,
                "pictures": pictures.name,
                "setting": _agreed(setting),
                "data": trainings.facts(),
                "device": device_memory.device_words(),
            }
        )
        largest = _largest(study, setting, trainings.sample.train, project, console)
        first = list(study.cells(setting, largest))
        with _Line(console, [*first, *study.timed_cells(setting, PLACE)]) as line:
            pairs = [(cell, line.made(cell, trainings)) for cell in first]
            seconds = _begun_seconds(project) or equal_seconds(pairs)
            timed = list(study.timed_cells(setting, seconds))
            line.left = timed
            pairs += [(cell, line.made(cell, trainings)) for cell in timed]
    records = [record for _, record in pairs]
    measured = Measured(frame_of(pairs), setting, trainings.sample)
    return study_page.write(folder, study, measured, records, facts)


def _agreed(setting: Setting) -> dict[str, Any]:
    """What a folder keeps of its setting; more seeds, or fewer, go on with the same trainings."""
    return {name: value for name, value in vars(setting).items() if name != "seeds"}


def _largest(
    study: Study, setting: Setting, examples: int, project: Project, console: Console
) -> dict[str, int]:
    """The largest micro-batches that the study asks for."""
    rungs = study.rungs(setting)
    if not rungs:
        return {}
    return largest_batches(rungs, techniques.model_of(setting), setting, examples, project, console)


def equal_seconds(pairs: Sequence[tuple[Cell, Record]]) -> float:
    """Return the median training seconds of the cells at equal epochs, to three digits.

    A cell that ended without a value does not count.

    Args:
        pairs: Each cell with its record.
    """
    seconds = [
        record.outcome.train_seconds
        for cell, record in pairs
        if cell.length.unit == "epochs" and record.outcome.ended in SCORED
    ]
    return float(f"{statistics.median(seconds or [PLACE]):.3g}")


def _begun_seconds(project: Project) -> float | None:
    """The seconds of cells at equal time that were begun, though the median may now be another.

    It is another with more seeds, and by an older version's rule.
    """
    values = [record.values for record in project.store.records()]
    return next((float(each["seconds"]) for each in values if "seconds" in each), None)


class _Line:
    """Prints a line for each cell, and on a terminal a bar with the time left.

    Args:
        console: Console to print to.
        cells: All cells.

    Attributes:
        left: The cells that are left.
    """

    def __init__(self, console: Console, cells: Sequence[Cell]) -> None:
        self._console, self._cells, self.left = console, len(cells), list(cells)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._done = 0
        self._taken: list[tuple[Hashable, float]] = []

    def __enter__(self) -> _Line:
        self._progress.start()
        self._task = self._progress.add_task("", total=self._cells, left="")
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def made(self, cell: Cell, trainings: Trainings) -> Record:
        """Return the record of a cell, which is trained if need be, and print its line."""
        known = trainings.known(cell)
        self._progress.update(
            self._task, description=str(cell), completed=self._done, left=self._words()
        )
        began = time.perf_counter()
        record = trainings.record(cell)
        self._done += 1
        self.left = [each for each in self.left if each != cell]
        seconds = time.perf_counter() - began
        if known is not None:
            seconds = known.outcome.seconds.get("total", 0.0)
        self._taken.append((_kind(cell), seconds))
        note = " (from its record)" if known else f", {self._words()}" * bool(self.left)
        value = record.outcome.value
        held = f"ended by {record.outcome.ended}" if value is None else f"{value:.3f} held"
        self._console.print(
            f"{self._done} of {self._cells}  {cell}: {held}{note}", highlight=False, soft_wrap=True
        )
        return record

    def _words(self) -> str:
        """The time that is left, in words; empty before a cell has ended."""
        seconds = alike_seconds(self._taken, [_kind(cell) for cell in self.left])
        return "" if seconds is None else f"about {time_words(seconds)} left"


def _kind(cell: Cell) -> Hashable:
    """What tells how long a cell takes: all but its seed and, of equal time, its seconds."""
    length = cell.length.unit if cell.length.unit == "seconds" else str(cell.length)
    return (cell.model, cell.recipe, cell.data, length, cell.isolated)
