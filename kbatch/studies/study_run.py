"""Study run: makes a study and writes its page."""

from __future__ import annotations

import statistics
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from kbatch.canvas import Chart, group_chart, group_points, save, span_of
from kbatch.data.examples import Examples
from kbatch.outcome import SCORED
from kbatch.records import files as records_files
from kbatch.records.project import Project
from kbatch.records.store import Record
from kbatch.results.page import rendered, vega
from kbatch.results.words import alike_seconds, time_words, versions_of
from kbatch.runtime import device_memory
from kbatch.studies import augmentation, generalisation, optimizers, techniques, throughput
from kbatch.studies.cell import Cell, CellResults, Setting, StudyTable, frame_of
from kbatch.studies.study import Study, Verdict, sentences
from kbatch.studies.trainings import Trainings, largest_batches
from kbatch.text_table import csv_of

PAGE, CELLS, FIGURE, HTML = "study.md", "cells.csv", "study.png", "study.html"
TEMPLATE = "study.html.jinja"

UNITS = {"epochs": "epochs", "updates": "updates", "seconds": "time"}


def write(
    folder: Path,
    study: Study,
    measured: CellResults,
    records: Sequence[Record],
    facts: Sequence[str],
) -> list[Path]:
    """Write the page, its figure and the table of all cells, and return their paths."""
    files = [folder / CELLS]
    records_files.write(files[0], csv_of(measured.frame))
    charts = charts_of(study, measured.frame)
    if charts:
        files.append(folder / FIGURE)
        save(charts, files[-1])
    files += [folder / HTML, folder / PAGE]
    records_files.write(files[-2], html(study, measured, records, facts))
    records_files.write(files[-1], markdown(study, measured, records, facts))
    return files


def charts_of(study: Study, frame: pd.DataFrame) -> list[Chart]:
    """Return a chart for each way of comparing: at equal epochs, updates and time."""
    if not study.drawn:
        return []
    of_units = {
        unit: group_points(frame[frame.unit == unit], study.drawn) for unit in frame.unit.unique()
    }
    known = {unit: points for unit, points in of_units.items() if len(points)}
    if not known:
        return []
    span = span_of(pd.concat(known.values()))
    return [
        group_chart(points, f"{study.name}-{unit}", _title(study, unit), study.axis, span)
        for unit, points in known.items()
    ]


def _title(study: Study, unit: str) -> str:
    return f"{study.axis.capitalize()} at equal {UNITS[unit]}"


def markdown(
    study: Study, measured: CellResults, records: Sequence[Record], facts: Sequence[str]
) -> str:
    """Return the page as Markdown."""
    lines = [f"# {study.title}", "", study.question, ""]
    lines += [f"- {fact}" for fact in (*facts, *sentences(measured), *_machine(records))]
    lines += ["", "## What was measured here", ""]
    lines += [f"{table.markdown()}" for table in study.tables(measured)]
    if charts_of(study, measured.frame):
        lines += [f"![{study.axis} over batch size]({FIGURE})", ""]
    failures = _failures(measured.frame)
    if failures:
        lines += ["### Cells without a value", "", *(f"- {each}" for each in failures), ""]
    lines += ["## What was published", ""]
    for verdict in _verdicts(study, measured):
        lines += [
            f"- *{verdict.claim}* ({verdict.source})",
            f"    **{verdict.found.capitalize()}**: {verdict.evidence}.",
        ]
    return "\n".join([*lines, ""])


@dataclass(frozen=True)
class StudyContents:
    """All that the page of a study shows."""

    name: str
    title: str
    question: str
    axis: str  # what its charts draw over the batch size
    verdicts: Sequence[Verdict]  # what became of each published claim
    tables: Sequence[StudyTable]
    charts: Sequence[Chart]
    failures: Sequence[str]  # the cells that ended without a value
    facts: Sequence[str]  # how it was measured


def html(
    study: Study, measured: CellResults, records: Sequence[Record], facts: Sequence[str]
) -> str:
    """Return the page as one file of HTML, with its charts; see `markdown` for the arguments."""
    contents = StudyContents(
        study.name,
        study.title,
        study.question,
        study.axis.capitalize(),
        _verdicts(study, measured),
        study.tables(measured),
        charts_of(study, measured.frame),
        _failures(measured.frame),
        [*facts, *sentences(measured), *_machine(records)],
    )
    template = resources.files("kbatch.studies").joinpath(TEMPLATE).read_text(encoding="utf-8")
    return rendered(template, contents, vega())


def _verdicts(study: Study, measured: CellResults) -> list[Verdict]:
    """What became of the claims; a quick study claims nothing."""
    verdicts = study.verdicts(measured)
    if measured.setting.quick:
        return [verdict.unclaimed() for verdict in verdicts]
    return list(verdicts)


def _machine(records: Sequence[Record]) -> list[str]:
    devices = sorted({record.device for record in records})
    versions = sorted(set(map(versions_of, records)))
    return [f"device: {'; '.join(devices)}", f"versions: {'; '.join(versions)}"]


def _failures(frame: pd.DataFrame) -> list[str]:
    """The cells that ended without a value."""
    failed = frame[frame.val_accuracy.isna()]
    return [
        f"{row.group}, batch {row.batch_size}, seed {row.seed}: {row.ended}"
        for row in failed.itertuples()
    ]


PLACE = 1.0  # seconds that stand for the equal time until it is known


def run(
    study: Study,
    setting: Setting,
    pictures: Examples,
    folder: Path,
    facts: Sequence[str],
    console: Console,
) -> list[Path]:
    """Train the cells that the folder does not have, and write the page; return the files."""
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
    measured = CellResults(frame_of(pairs), setting, trainings.sample)
    return write(folder, study, measured, records, facts)


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
    """
    seconds = [
        record.outcome.train_seconds
        for cell, record in pairs
        if cell.length.unit == "epochs" and record.outcome.ended in SCORED
    ]
    return float(f"{statistics.median(seconds or [PLACE]):.3g}")


def _begun_seconds(project: Project) -> float | None:
    """The seconds of cells at equal time that were begun: with more seeds the median is another."""
    values = [record.values for record in project.store.records()]
    return next((float(each["seconds"]) for each in values if "seconds" in each), None)


class _Line:
    """Prints a line for each cell, and on a terminal a bar with the time left."""

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


STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (optimizers, augmentation, techniques, throughput, generalisation)
}
