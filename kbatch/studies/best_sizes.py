"""Best sizes: the table of the best batch of each group, and of the sizes within noise of it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from kbatch.results.uncertainty import FEWEST_SEEDS
from kbatch.studies.comparison import Values, best, bests, compared
from kbatch.studies.description import counted
from kbatch.studies.measured import Measured
from kbatch.studies.study_table import NOTHING, StudyTable, mean_text


def best_sizes(measured: Measured, heading: str) -> StudyTable:
    """Return the table of the most accurate batch of each group, at each length.

    Args:
        measured: What was measured.
        heading: String, what the groups are.
    """
    lines = []
    for (group, unit), own in measured.frame.groupby(["group", "unit"], sort=False):
        length = counted(own.length.iloc[0], str(unit))
        sizes = measured.sizes(own, "val_accuracy")
        lines.append([group, length, *_line(sizes)])
    headings = [heading, "trained for", "best batch", "val_accuracy", "within noise of it"]
    return StudyTable(
        f"Best batch of each {heading}",
        pd.DataFrame(lines, columns=headings),
        "Sizes within noise may be the best with other seeds.",
    )


def _line(sizes: Sequence[Values]) -> list[str]:
    """The best size, its accuracy, and the sizes that are not told from it."""
    known = [each for each in sizes if each.known]
    if not known:
        return [NOTHING, NOTHING, NOTHING]
    top = best(known)
    return [bests(known), mean_text(top.values), _near(top, sizes)]


def _near(top: Values, sizes: Sequence[Values]) -> str:
    """The sizes within noise of the best, and those that cannot be compared with it."""
    seeds = len(top.values)
    if seeds < FEWEST_SEEDS:
        return f"{counted(seeds, 'seeds')}: not compared"
    pairs = len(sizes) * (len(sizes) - 1) // 2
    near, failed = [], []
    for each in sizes:
        if not each.known:
            failed.append(f"{each.size} has no value")
        elif each is not top and compared(top, each, pairs).answer == "within noise":
            near.append(str(each.size))
    return "; ".join([", ".join(near) or "none", *failed])
