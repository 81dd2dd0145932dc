"""The study `augmentation`: what augmentation and other trainings do for a large batch."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from kbatch.recipe import Recipe
from kbatch.studies.cell import (
    CROPPED,
    GIVEN,
    Cell,
    CellResults,
    Length,
    Setting,
    StudyTable,
    by_batch,
)
from kbatch.studies.study import (
    Case,
    ClaimCase,
    Study,
    Verdict,
    at_equal_seconds,
    contrast,
    epochs_of,
    timed,
)

RATE = 0.001  # Keras' own for Adam
SIZES, QUICK_SIZES = (16, 32, 64, 128, 256), (16, 128)
STANDARD, PUBLISHED = "standard", "crops added (as published)"
FROM, TO = 16, 128  # the best batch without and with augmentation, as published
# Group, data and what it adds to the standard recipe.
GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    STANDARD: (GIVEN, {}),
    PUBLISHED: (CROPPED, {}),
    "flip": (GIVEN, {"augmentation": "flip"}),
    "flip, shift": (GIVEN, {"augmentation": "flip_shift"}),
    "flip, shift, contrast": (GIVEN, {"augmentation": "flip_shift_contrast"}),
    "mixup": (GIVEN, {"augmentation": "mixup"}),
    "cutmix": (GIVEN, {"augmentation": "cutmix"}),
    "conservative (proximal 0.1)": (GIVEN, {"training": "proximal:0.1"}),
    "robust (SAM 0.05)": (GIVEN, {"training": "sam:0.05"}),
}
QUICK_GROUPS = (STANDARD, PUBLISHED, "robust (SAM 0.05)")


def cells(setting: Setting, largest: Mapping[str, int]) -> list[Cell]:
    """Return the cells at equal epochs; one with crops added has twice the examples in each."""
    sizes = setting.either(SIZES, QUICK_SIZES)
    names = setting.either(tuple(GROUPS), QUICK_GROUPS)
    return [
        Cell(
            group,
            Recipe(size, "adam", RATE, **GROUPS[group][1]),  # type: ignore[arg-type]
            Length(setting.epochs, "epochs"),
            seed,
            data=GROUPS[group][0],
        )
        for seed in range(setting.seeds)
        for group in names
        for size in sizes
    ]


def tables(measured: CellResults) -> list[StudyTable]:
    """Return accuracy at equal epochs and at equal time, and what the epochs took."""
    epochs = measured.at_equal("epochs")
    return [
        StudyTable(
            f"Validation accuracy held within {epochs_of(epochs)}, Adam",
            by_batch(epochs, "val_accuracy"),
            "An epoch with crops added has twice the examples, one of SAM two passes, one of the "
            "proximal method three.",
        ),
        StudyTable("Training seconds", by_batch(epochs, "train_seconds", digits=1)),
        *at_equal_seconds(measured, ", Adam"),
    ]


def verdicts(measured: CellResults) -> list[Verdict]:
    """Return what became of 16 → 128."""
    return [
        _moves(measured, measured.at_equal("epochs"), "equal epochs"),
        _moves(measured, measured.at_equal("seconds"), "equal time"),
    ]


def _moves(measured: CellResults, frame: pd.DataFrame, at: str) -> Verdict:
    """Whether augmentation moves the best batch from 16 to 128."""
    sizes = {
        name: measured.sizes(frame[frame.group == name], "val_accuracy")
        for name in (STANDARD, PUBLISHED)
    }
    before = contrast(
        [each for each in sizes[STANDARD] if each.size <= FROM],
        [each for each in sizes[STANDARD] if each.size > FROM],
    )
    after = contrast(
        [each for each in sizes[PUBLISHED] if each.size >= TO],
        [each for each in sizes[PUBLISHED] if each.size < TO],
    )
    words = f"{before.of(STANDARD).evidence}; {after.of(PUBLISHED).evidence}"
    return Verdict.by(
        f"With Adam, augmentation moves the best batch from {FROM} to {TO}, at {at}.",
        "a public cats-vs-dogs case study (resize to 250, random crop of 200, added)",
        [ClaimCase(_both(before.case, after.case), words)],
    )


def _both(before: Case, after: Case) -> Case:
    """The case of a move, which needs both its beginning and its end."""
    for case in ("missing", "no", "undecided"):
        if case in (before, after):
            return case
    return "yes"


STUDY = Study(
    name="augmentation",
    title="What augmentation does for a large batch",
    question=(
        "Which batch size is best with Adam: without augmentation, with crops added as published, "
        "with augmentation on the device, and by conservative and robust training?"
    ),
    published=Setting(image_size=200, epochs=5, seeds=3),
    quick=Setting(image_size=32, epochs=1, seeds=1, quick=True),
    cells=cells,
    timed_cells=timed(cells),
    tables=tables,
    verdicts=verdicts,
)
