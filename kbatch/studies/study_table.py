"""StudyTable: one table of a study, with means and standard errors over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

NOTHING = "–"  # of a cell that has no value


@dataclass(frozen=True)
class StudyTable:
    """One table of a study.

    Attributes:
        title: String, what the table shows, with its units.
        frame: `pandas.DataFrame` of texts and numbers, one row per line of the table.
        note: String, a sentence below the table; may be empty.
    """

    title: str
    frame: pd.DataFrame
    note: str = ""

    def markdown(self) -> str:
        """Return the table as Markdown below its title."""
        table = str(self.frame.to_markdown(index=False, disable_numparse=True))
        note = f"\n{self.note}\n" if self.note else ""
        return f"### {self.title}\n\n{table}\n{note}"


def mean_text(values: Iterable[float], digits: int = 3, factor: float = 1.0) -> str:
    """Return the mean of some values with its standard error, if there are several.

    Args:
        values: Numbers; NaN are left out.
        digits: Integer, digits after the point.
        factor: Float that the values are multiplied by, such as `1e-6` for megabytes.

    >>> mean_text([0.5, 0.7]), mean_text([0.5]), mean_text([])
    ('0.600 ± 0.100', '0.500', '–')
    """
    known = pd.Series([float(value) for value in values if not pd.isna(value)]) * factor
    if known.empty:
        return NOTHING
    if len(known) == 1:
        return f"{known[0]:,.{digits}f}"
    return f"{known.mean():,.{digits}f} ± {known.std() / math.sqrt(len(known)):,.{digits}f}"


def by_batch(
    frame: pd.DataFrame, column: str, heading: str = "", digits: int = 3, factor: float = 1.0
) -> pd.DataFrame:
    """Return a table with a line for each group and a column for each batch size.

    Args:
        frame: A row for each cell, with the columns `group` and `batch_size`.
        column: String, the column whose means are shown.
        heading: String, heading of the groups.
        digits: Integer, digits after the point.
        factor: Float that the values are multiplied by.
    """
    sizes = sorted(frame.batch_size.unique())
    lines = []
    for group in frame.group.unique():
        own = frame[frame.group == group]
        texts = [mean_text(own[own.batch_size == size][column], digits, factor) for size in sizes]
        lines.append([group, *texts])
    return pd.DataFrame(lines, columns=[heading, *map(str, sizes)])
