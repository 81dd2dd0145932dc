"""The study `optimizers`: accuracy against batch size, for SGD and Adam."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from kbatch.recipe import Recipe
from kbatch.studies.cell import Cell, Length
from kbatch.studies.setting import Setting
from kbatch.studies.study import Study
from kbatch.studies.study_table import StudyTable, best_batch, by_batch
from kbatch.studies.verdict import Verdict, found

# Keras' own rates: 0.001 with momentum 0.9 for SGD, as the case study compiles it, and for Adam.
RATES = {"sgd": 0.001, "adam": 0.001}
SIZES, QUICK_SIZES = (16, 32, 64, 128), (16, 64)
POINTS = 0.02  # of accuracy: a smaller difference is within the noise of 400 pictures


def cells(setting: Setting, largest: Mapping[str, int]) -> list[Cell]:
    """Return the cells at equal epochs."""
    return [
        Cell(optimizer, recipe, Length(setting.epochs, "epochs"), seed)
        for seed in range(setting.seeds)
        for optimizer, recipe in _recipes(setting)
    ]


def timed_cells(setting: Setting, seconds: float) -> list[Cell]:
    """Return the same cells at equal training seconds."""
    return [cell.lasting(Length(seconds, "seconds")) for cell in cells(setting, {})]


def _recipes(setting: Setting) -> list[tuple[str, Recipe]]:
    sizes = QUICK_SIZES if setting.quick else SIZES
    return [
        (optimizer, Recipe(size, optimizer, rate))
        for optimizer, rate in RATES.items()
        for size in sizes
    ]


def tables(frame: pd.DataFrame) -> list[StudyTable]:
    """Return accuracy at equal epochs, on validation and on training data, and at equal time."""
    epochs, timed = frame[frame.unit == "epochs"], frame[frame.unit == "seconds"]
    shown = [
        StudyTable("Validation accuracy after equal epochs", by_batch(epochs, "val_accuracy")),
        StudyTable(
            "The same weights on their own training data",
            by_batch(epochs, "train_accuracy"),
            "This is what a validation on training data shows.",
        ),
        StudyTable("Training seconds", by_batch(epochs, "train_seconds", digits=1)),
    ]
    if len(timed):
        title = f"Validation accuracy after {timed.length.iloc[0]:.3g} training seconds"
        shown.append(StudyTable(title, by_batch(timed, "val_accuracy")))
    return shown


def verdicts(frame: pd.DataFrame) -> list[Verdict]:
    """Return what became of the write-up's method and of its finding."""
    epochs, timed = frame[frame.unit == "epochs"], frame[frame.unit == "seconds"]
    return [
        _validated(epochs),
        _small_is_best(epochs, "equal epochs"),
        _same_at_time(epochs, timed),
    ]


def _validated(epochs: pd.DataFrame) -> Verdict:
    """Whether training data choose the batch size that validation data choose."""
    claim = "Accuracy on the training data tells which batch size is best."
    source = "a public cats-vs-dogs case study, which passes its training iterator as validation"
    known = epochs.dropna(subset=["train_accuracy", "val_accuracy"])
    if known.empty:
        return Verdict(claim, source, found([]), "no cell has both accuracies")
    words, agreed = [], []
    for optimizer, own in known.groupby("group", sort=False):
        on_train, on_val = best_batch(own, "train_accuracy"), best_batch(own, "val_accuracy")
        gap = (own.train_accuracy - own.val_accuracy).mean()
        words.append(
            f"{optimizer}: best batch {on_train} on training data, {on_val} on validation data, "
            f"accuracy higher by {gap:+.3f} on training data"
        )
        agreed.append(on_train == on_val)
    return Verdict(claim, source, found(agreed), "; ".join(words))


def _small_is_best(epochs: pd.DataFrame, at: str) -> Verdict:
    """Whether accuracy falls with the batch size."""
    claim = f"At {at} a small batch (32 or less) is the most accurate."
    source = "Masters & Luschi 2018, arXiv:1804.07612"
    best = {
        str(optimizer): best_batch(own, "val_accuracy")
        for optimizer, own in epochs.groupby("group", sort=False)
    }
    known = {name: size for name, size in best.items() if size is not None}
    words = "; ".join(f"{name}: best batch {size}" for name, size in known.items())
    return Verdict(claim, source, found([size <= 32 for size in known.values()]), words)


def _same_at_time(epochs: pd.DataFrame, timed: pd.DataFrame) -> Verdict:
    """Whether the best batch at equal epochs is the best at equal time."""
    claim = "The best batch size at equal epochs is the best at equal time."
    source = "what comparing by epochs assumes"
    if timed.empty:
        return Verdict(claim, source, found([]), "no cell at equal time")
    words, agreed = [], []
    for optimizer, own in timed.groupby("group", sort=False):
        at_epochs = best_batch(epochs[epochs.group == optimizer], "val_accuracy")
        at_time = best_batch(own, "val_accuracy")
        words.append(f"{optimizer}: {at_epochs} at equal epochs, {at_time} at equal time")
        agreed.append(at_epochs == at_time)
    return Verdict(claim, source, found(agreed), "; ".join(words))


STUDY = Study(
    name="optimizers",
    title="Accuracy against batch size, for SGD and Adam",
    question=(
        "Which batch size is best after 5 epochs, with SGD and with Adam? And which at equal time? "
        "The case study's network, 600 pictures of each class."
    ),
    published=Setting(image_size=200, epochs=5, seeds=3),
    quick=Setting(image_size=32, epochs=2, seeds=1, quick=True),
    cells=cells,
    timed_cells=timed_cells,
    tables=tables,
    verdicts=verdicts,
)
