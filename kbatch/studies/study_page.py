"""The page and the tables of a study, as Markdown and CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from kbatch.records import atomic_file
from kbatch.records.record import Record
from kbatch.studies.study import Study

PAGE, CELLS = "study.md", "cells.csv"


def write(
    folder: Path,
    study: Study,
    frame: pd.DataFrame,
    records: Sequence[Record],
    facts: Sequence[str],
) -> list[Path]:
    """Write the page and the table of all cells, and return their paths.

    Args:
        folder: Folder of the study.
        study: The study.
        frame: A row for each cell (see `kbatch.studies.results`).
        records: The records of the cells.
        facts: Sentences on command, data and setting.
    """
    files = [folder / CELLS, folder / PAGE]
    atomic_file.write(files[0], frame.to_csv(index=False))
    atomic_file.write(files[1], markdown(study, frame, records, facts))
    return files


def markdown(
    study: Study, frame: pd.DataFrame, records: Sequence[Record], facts: Sequence[str]
) -> str:
    """Return the page as Markdown.

    Args:
        study: The study.
        frame: A row for each cell.
        records: The records of the cells.
        facts: Sentences on command, data and setting.
    """
    lines = [f"# {study.title}", "", study.question, ""]
    lines += [f"- {fact}" for fact in (*facts, *_machine(records))]
    lines += ["", "## What was measured here", ""]
    lines += [f"{table.markdown()}" for table in study.tables(frame)]
    lines += [*_failures(frame), "## What was published", ""]
    for verdict in study.verdicts(frame):
        lines += [
            f"- *{verdict.claim}* ({verdict.source})",
            f"    **{verdict.found.capitalize()}**: {verdict.evidence}.",
        ]
    return "\n".join([*lines, ""])


def _machine(records: Sequence[Record]) -> list[str]:
    devices = sorted({record.device for record in records})
    versions = set()
    for record in records:
        versions.add(", ".join(f"{name} {number}" for name, number in record.versions.items()))
    return [f"device: {'; '.join(devices)}", f"versions: {'; '.join(sorted(versions))}"]


def _failures(frame: pd.DataFrame) -> list[str]:
    """A list of the cells that ended without a value."""
    failed = frame[frame.val_accuracy.isna()]
    if failed.empty:
        return []
    lines = [
        f"- {row.group}, batch {row.batch_size}, seed {row.seed}: {row.ended}"
        for row in failed.itertuples()
    ]
    return ["### Cells without a value", "", *lines, ""]
