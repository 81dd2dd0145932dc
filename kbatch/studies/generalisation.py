"""The study `generalisation`: accuracy and gap against batch size, by three fair comparisons."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from kbatch.recipe import Recipe
from kbatch.studies.cell import (
    Cell,
    CellResults,
    Length,
    Setting,
    StudyTable,
    Values,
    best,
    by_batch,
    compared,
)
from kbatch.studies.study import (
    CASES,
    Case,
    ClaimCase,
    Study,
    Verdict,
    contrast,
    learned,
    missing,
    timed,
)

RATE = 0.01  # of SGD with momentum 0.9: at every size the same, as in the published table
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
QUICK_SIZES = (8, 128)
UPDATES = 300  # of every size in the comparison at equal updates: 4 epochs of batch 16
QUICK_UPDATES = 10
GROUP = "sgd"
SMALL = 32  # the largest batch that counts as a small one
TOLERATED = 0.02  # of accuracy: who loses less is said to lose nothing


def cells(setting: Setting, largest: Mapping[str, int]) -> list[Cell]:
    """Return the cells at equal epochs and at equal updates."""
    updates = Length(setting.either(UPDATES, QUICK_UPDATES), "updates")
    return [
        Cell(GROUP, Recipe(size, "sgd", RATE), length, seed)
        for length in (Length(setting.epochs, "epochs"), updates)
        for seed in range(setting.seeds)
        for size in setting.either(SIZES, QUICK_SIZES)
    ]


def tables(measured: CellResults) -> list[StudyTable]:
    """Return accuracy by comparison, and the gap between training and test data."""
    frame = measured.frame
    frame = frame.assign(
        group="at equal " + frame.unit.map({"seconds": "time"}).fillna(frame.unit),
        gap=frame.train_accuracy - frame.test_accuracy,
    )
    return [
        StudyTable(
            "Validation accuracy held, mean ± standard error", by_batch(frame, "val_accuracy")
        ),
        StudyTable(
            "Generalisation gap: accuracy on training data less accuracy on test data",
            by_batch(frame, "gap"),
        ),
        StudyTable("Weight updates", by_batch(frame, "updates", digits=0)),
        StudyTable("Training seconds", by_batch(frame, "train_seconds", digits=1)),
    ]


def verdicts(measured: CellResults) -> list[Verdict]:
    """Return what became of the falling accuracy and of two explanations."""
    epochs = measured.at_equal("epochs")
    return [
        Verdict.by(
            "At equal epochs the largest batch is less accurate than a small one.",
            "a public 10-epoch table over batch 4 to 1024, whose numbers are not at hand here: "
            "only its direction is compared",
            [_falls(measured, epochs)],
        ),
        Verdict.by(
            "A large batch generalises worse: its gap is wider.",
            "Keskar et al. 2017, arXiv:1609.04836",
            [_gap(measured, epochs)],
        ),
        Verdict.by(
            "At equal updates a large batch loses nothing.",
            "Hoffer et al. 2017, arXiv:1705.08741",
            [_keeps_up(measured, measured.at_equal("updates"))],
        ),
    ]


def _ends(sizes: list[Values]) -> tuple[list[Values], list[Values]]:
    """The small sizes, and the largest one if it is not small."""
    return [each for each in sizes if each.size <= SMALL], [
        each for each in sizes[-1:] if each.size > SMALL
    ]


def _falls(measured: CellResults, epochs: pd.DataFrame) -> ClaimCase:
    """Whether the best small batch is above the largest one."""
    return contrast(*_ends(measured.sizes(epochs, "val_accuracy")))


def _gap(measured: CellResults, epochs: pd.DataFrame) -> ClaimCase:
    """Whether the largest batch has a wider gap than the small one with the best accuracy."""
    small, largest = _ends(measured.sizes(epochs, "val_accuracy"))
    gaps = {each.size: each for each in measured.gaps(epochs)}
    lacking = missing(small, largest, list(gaps.values()))
    if lacking is not None:
        return lacking
    sides = best(small), largest[0]
    wide, narrow = gaps[sides[1].size], gaps[sides[0].size]
    comparison = compared(wide, narrow, len(small))
    accurate = learned(CASES[comparison.answer], sides, comparison, len(small) + 1)
    words = f"gap {wide}, {narrow} ({comparison}); accuracy {sides[0]}, {sides[1]}"
    return ClaimCase(accurate.case, words)


def _keeps_up(measured: CellResults, updates: pd.DataFrame) -> ClaimCase:
    """Whether the largest batch loses at most `TOLERATED` against the best small one.

    That two means are within noise of each other does not say that nothing is lost.
    """
    small, largest = _ends(measured.sizes(updates, "val_accuracy"))
    lacking = missing(small, largest)
    if lacking is not None:
        return lacking
    comparison = compared(largest[0], best(small), len(small))
    case: Case = "undecided"
    if comparison.low > -TOLERATED:
        case = "yes"
    elif comparison.high < -TOLERATED or comparison.answer == "lower":
        case = "no"
    return learned(case, (largest[0], best(small)), comparison, len(small) + 1)


STUDY = Study(
    name="generalisation",
    title="Accuracy against batch size, at equal epochs, updates and time",
    question=(
        "Is a large batch worse, and is it the batch? SGD with one learning rate for all sizes."
    ),
    published=Setting(image_size=64, epochs=10, seeds=3),
    quick=Setting(image_size=32, epochs=1, seeds=2, quick=True),
    cells=cells,
    timed_cells=timed(cells),
    tables=tables,
    verdicts=verdicts,
)
