"""The study `augmentation`: what augmentation and other trainings do for a large batch."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from kbatch.recipe import Recipe
from kbatch.studies.cell import CROPPED, GIVEN, Cell, Length
from kbatch.studies.setting import Setting
from kbatch.studies.study import Study
from kbatch.studies.study_table import StudyTable, best_batch, by_batch
from kbatch.studies.verdict import Verdict, found

RATE = 0.001  # Keras' own for Adam
SIZES, QUICK_SIZES = (16, 32, 64, 128, 256), (16, 128)
STANDARD, PUBLISHED = "standard", "crops added (as published)"
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
    sizes = QUICK_SIZES if setting.quick else SIZES
    names = QUICK_GROUPS if setting.quick else tuple(GROUPS)
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


def timed_cells(setting: Setting, seconds: float) -> list[Cell]:
    """Return the same cells at equal training seconds."""
    return [cell.lasting(Length(seconds, "seconds")) for cell in cells(setting, {})]


def tables(frame: pd.DataFrame) -> list[StudyTable]:
    """Return accuracy at equal epochs and at equal time, and what the epochs took."""
    epochs, timed = frame[frame.unit == "epochs"], frame[frame.unit == "seconds"]
    shown = [
        StudyTable(
            "Validation accuracy after equal epochs, Adam",
            by_batch(epochs, "val_accuracy"),
            "An epoch with crops added has twice the examples, one of SAM two passes, one of the "
            "proximal method three.",
        ),
        StudyTable("Training seconds", by_batch(epochs, "train_seconds", digits=1)),
    ]
    if len(timed):
        title = f"Validation accuracy after {timed.length.iloc[0]:.3g} training seconds, Adam"
        shown.append(StudyTable(title, by_batch(timed, "val_accuracy")))
    return shown


def verdicts(frame: pd.DataFrame) -> list[Verdict]:
    """Return what became of 16 → 128."""
    return [
        _moves(frame[frame.unit == "epochs"], "equal epochs"),
        _moves(frame[frame.unit == "seconds"], "equal time"),
    ]


def _moves(frame: pd.DataFrame, at: str) -> Verdict:
    """Whether augmentation moves the best batch from 16 to 128."""
    claim = f"With Adam, augmentation moves the best batch from 16 to 128, at {at}."
    source = "a public cats-vs-dogs case study (resize to 250, random crop of 200, added)"
    best = {
        str(group): best_batch(own, "val_accuracy")
        for group, own in frame.groupby("group", sort=False)
    }
    known = {group: size for group, size in best.items() if size is not None}
    if STANDARD not in known or PUBLISHED not in known:
        return Verdict(claim, source, found([]), "no cells")
    words = "; ".join(f"{group}: best batch {size}" for group, size in known.items())
    cases = [known[STANDARD] <= 16, known[PUBLISHED] >= 128]
    return Verdict(claim, source, found(cases), words)


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
    timed_cells=timed_cells,
    tables=tables,
    verdicts=verdicts,
)
