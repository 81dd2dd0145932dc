"""The study `generalisation`: accuracy and gap against batch size, by three fair comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from kbatch.recipe import Recipe
from kbatch.studies.cell import Cell, Length
from kbatch.studies.setting import Setting
from kbatch.studies.study import Study
from kbatch.studies.study_table import StudyTable, by_batch, mean_text
from kbatch.studies.verdict import Verdict, found

RATE = 0.01  # of SGD with momentum 0.9: at every size the same, as in the published table
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
QUICK_SIZES = (8, 128)
UPDATES = 300  # of every size in the comparison at equal updates: 4 epochs of batch 16
QUICK_UPDATES = 10
GROUP = "sgd"


def cells(setting: Setting, largest: Mapping[str, int]) -> list[Cell]:
    """Return the cells at equal epochs and at equal updates."""
    updates = QUICK_UPDATES if setting.quick else UPDATES
    lengths = (Length(setting.epochs, "epochs"), Length(updates, "updates"))
    return [cell for length in lengths for cell in _cells(setting, length)]


def timed_cells(setting: Setting, seconds: float) -> list[Cell]:
    """Return the cells at equal training seconds."""
    return _cells(setting, Length(seconds, "seconds"))


def _cells(setting: Setting, length: Length) -> list[Cell]:
    sizes = QUICK_SIZES if setting.quick else SIZES
    return [
        Cell(GROUP, Recipe(size, "sgd", RATE), length, seed)
        for seed in range(setting.seeds)
        for size in sizes
    ]


def tables(frame: pd.DataFrame) -> list[StudyTable]:
    """Return accuracy by comparison, and the gap between training and test data."""
    frame = frame.assign(
        group="at equal " + frame.unit.map({"seconds": "time"}).fillna(frame.unit),
        gap=frame.train_accuracy - frame.test_accuracy,
    )
    return [
        StudyTable("Validation accuracy, mean ± standard error", by_batch(frame, "val_accuracy")),
        StudyTable(
            "Generalisation gap: accuracy on training data less accuracy on test data",
            by_batch(frame, "gap"),
        ),
        StudyTable("Weight updates", by_batch(frame, "updates", digits=0)),
        StudyTable("Training seconds", by_batch(frame, "train_seconds", digits=1)),
    ]


def verdicts(frame: pd.DataFrame) -> list[Verdict]:
    """Return what became of the falling accuracy and of two explanations."""
    return [
        _falls(frame[frame.unit == "epochs"]),
        _gap(frame[frame.unit == "epochs"]),
        _train_longer(frame),
    ]


def _ends(frame: pd.DataFrame, column: str) -> tuple[pd.Series, pd.Series] | None:
    """The values of a column at the best small batch (at most 32) and at the largest batch."""
    known = frame.dropna(subset=[column])
    small = known[known.batch_size <= 32]
    if small.empty or known.batch_size.max() <= 32:
        return None
    best = small.groupby("batch_size").val_accuracy.mean().idxmax()
    return (
        known[known.batch_size == best][column],
        known[known.batch_size == known.batch_size.max()][column],
    )


def _difference(first: pd.Series, second: pd.Series) -> tuple[float, float]:
    """The difference of two means, and its standard error; NaN with one seed."""
    error = math.sqrt(first.var() / len(first) + second.var() / len(second))
    return float(first.mean() - second.mean()), error


def _falls(epochs: pd.DataFrame) -> Verdict:
    claim = "At equal epochs the largest batch is less accurate than a small one."
    source = "a public 10-epoch table over batch 4 to 1024"
    ends = _ends(epochs, "val_accuracy")
    if ends is None:
        return Verdict(claim, source, found([]), "no cells")
    difference, error = _difference(*ends)
    words = f"{mean_text(list(ends[0]))} against {mean_text(list(ends[1]))}"
    return Verdict(claim, source, found([_is_above(difference, error)]), words)


def _gap(epochs: pd.DataFrame) -> Verdict:
    claim = "A large batch generalises worse: its gap is wider."
    source = "Keskar et al. 2017, arXiv:1609.04836"
    frame = epochs.assign(gap=epochs.train_accuracy - epochs.test_accuracy)
    ends = _ends(frame, "gap")
    if ends is None:
        return Verdict(claim, source, found([]), "no cells")
    difference, error = _difference(ends[1], ends[0])
    words = f"gap {mean_text(list(ends[1]))} of the largest, {mean_text(list(ends[0]))} of a small"
    return Verdict(claim, source, found([_is_above(difference, error)]), words)


def _train_longer(frame: pd.DataFrame) -> Verdict:
    claim = "At equal updates a large batch loses nothing."
    source = "Hoffer et al. 2017, arXiv:1705.08741"
    ends = _ends(frame[frame.unit == "updates"], "val_accuracy")
    if ends is None:
        return Verdict(claim, source, found([]), "no cells")
    difference, error = _difference(*ends)
    words = f"{mean_text(list(ends[0]))} of a small, {mean_text(list(ends[1]))} of the largest"
    return Verdict(claim, source, found([not _is_above(difference, error)]), words)


def _is_above(difference: float, error: float) -> bool:
    """Whether a difference is above 0 by two standard errors; with one seed by two points."""
    return difference > (0.02 if math.isnan(error) else 2 * error)


STUDY = Study(
    name="generalisation",
    title="Accuracy against batch size, at equal epochs, updates and time",
    question=(
        "Is a large batch worse, and is it the batch? SGD with one learning rate for all sizes, "
        "the case study's network."
    ),
    published=Setting(image_size=64, epochs=10, seeds=3),
    quick=Setting(image_size=32, epochs=1, seeds=2, quick=True),
    cells=cells,
    timed_cells=timed_cells,
    tables=tables,
    verdicts=verdicts,
)
