"""The pages and the tables of a study, as HTML, Markdown and CSV files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pandas as pd

from kbatch.page.page import rendered, vega
from kbatch.plain_text import csv_of
from kbatch.records import files as records_files
from kbatch.records.store import Record
from kbatch.results.charts.canvas import Chart, save
from kbatch.results.charts.probes import group_chart, group_points, span_of
from kbatch.studies.description import sentences
from kbatch.studies.measured import Measured
from kbatch.studies.study import Study
from kbatch.studies.study_table import StudyTable
from kbatch.studies.verdict import Verdict

PAGE, CELLS, FIGURE, HTML = "study.md", "cells.csv", "study.png", "study.html"
TEMPLATE = "study.html.jinja"

UNITS = {"epochs": "epochs", "updates": "updates", "seconds": "time"}


def write(
    folder: Path,
    study: Study,
    measured: Measured,
    records: Sequence[Record],
    facts: Sequence[str],
) -> list[Path]:
    """Write the page, its figure and the table of all cells, and return their paths.

    Args:
        folder: Folder of the study.
        study: The study.
        measured: What was measured.
        records: The records of the cells.
        facts: Sentences on what cannot be measured, such as the command.
    """
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
    """Return a chart for each way of comparing: at equal epochs, updates and time.

    Args:
        study: The study.
        frame: A row for each cell.
    """
    if not study.drawn:
        return []
    of_units = {
        unit: group_points(frame[frame.unit == unit], study.drawn) for unit in frame.unit.unique()
    }
    known = {unit: points for unit, points in of_units.items() if points}
    if not known:
        return []
    span = span_of(list(itertools.chain(*known.values())))
    return [
        group_chart(points, f"{study.name}-{unit}", _title(study, unit), study.axis, span)
        for unit, points in known.items()
    ]


def _title(study: Study, unit: str) -> str:
    return f"{study.axis.capitalize()} at equal {UNITS[unit]}"


def markdown(
    study: Study, measured: Measured, records: Sequence[Record], facts: Sequence[str]
) -> str:
    """Return the page as Markdown.

    Args:
        study: The study.
        measured: What was measured.
        records: The records of the cells.
        facts: Sentences on what cannot be measured, such as the command.
    """
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
    """All that the page of a study shows.

    Attributes:
        name: String, the name of the study.
        title: String, its heading.
        question: String, what it asks.
        axis: String, what its charts draw over the batch size.
        verdicts: Sequence of `Verdict`, what became of each published claim.
        tables: Sequence of `StudyTable`.
        charts: Sequence of `Chart`.
        failures: Sequence of strings, the cells that ended without a value.
        facts: Sequence of strings, how it was measured.
    """

    name: str
    title: str
    question: str
    axis: str
    verdicts: Sequence[Verdict]
    tables: Sequence[StudyTable]
    charts: Sequence[Chart]
    failures: Sequence[str]
    facts: Sequence[str]


def html(study: Study, measured: Measured, records: Sequence[Record], facts: Sequence[str]) -> str:
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


def _verdicts(study: Study, measured: Measured) -> list[Verdict]:
    """What became of the claims; a quick study claims nothing."""
    verdicts = study.verdicts(measured)
    if measured.setting.quick:
        return [verdict.unclaimed() for verdict in verdicts]
    return list(verdicts)


def _machine(records: Sequence[Record]) -> list[str]:
    devices = sorted({record.device for record in records})
    versions = set()
    for record in records:
        versions.add(", ".join(f"{name} {number}" for name, number in record.versions.items()))
    return [f"device: {'; '.join(devices)}", f"versions: {'; '.join(sorted(versions))}"]


def _failures(frame: pd.DataFrame) -> list[str]:
    """The cells that ended without a value."""
    failed = frame[frame.val_accuracy.isna()]
    return [
        f"{row.group}, batch {row.batch_size}, seed {row.seed}: {row.ended}"
        for row in failed.itertuples()
    ]
