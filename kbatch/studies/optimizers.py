"""The study `optimizers`: accuracy against batch size, for SGD and Adam."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from kbatch.recipe import Recipe
from kbatch.studies.cell import Cell, CellResults, Length, Setting, StudyTable, by_batch
from kbatch.studies.study import (
    ClaimCase,
    Study,
    Verdict,
    at_equal_seconds,
    best_sizes,
    choice,
    contrast,
    epochs_of,
    timed,
)

# Keras' own rates: 0.001 with momentum 0.9 for SGD, as the case study compiles it, and for Adam.
RATES = {"sgd": 0.001, "adam": 0.001}
SIZES, QUICK_SIZES = (16, 32, 64, 128), (16, 64)
SMALL = 32  # the largest batch of those that are claimed to be best


def cells(setting: Setting, largest: Mapping[str, int]) -> list[Cell]:
    """Return the cells at equal epochs."""
    return [
        Cell(optimizer, recipe, Length(setting.epochs, "epochs"), seed)
        for seed in range(setting.seeds)
        for optimizer, recipe in _recipes(setting)
    ]


def _recipes(setting: Setting) -> list[tuple[str, Recipe]]:
    sizes = setting.either(SIZES, QUICK_SIZES)
    return [
        (optimizer, Recipe(size, optimizer, rate))
        for optimizer, rate in RATES.items()
        for size in sizes
    ]


def tables(measured: CellResults) -> list[StudyTable]:
    """Return accuracy at equal epochs, on validation and on training data, and at equal time."""
    epochs = measured.at_equal("epochs")
    return [
        StudyTable(
            f"Validation accuracy held within {epochs_of(epochs)}", by_batch(epochs, "val_accuracy")
        ),
        StudyTable(
            "The same weights on their own training data",
            by_batch(epochs, "train_accuracy"),
            "This is what a validation on training data shows.",
        ),
        StudyTable("Training seconds", by_batch(epochs, "train_seconds", digits=1)),
        *at_equal_seconds(measured),
        best_sizes(measured, "optimizer"),
    ]


def verdicts(measured: CellResults) -> list[Verdict]:
    """Return what became of the write-up's method and of its finding."""
    epochs = measured.at_equal("epochs")
    return [
        _validated(measured, epochs),
        _small_is_best(measured, epochs),
        _same_at_time(measured, epochs, measured.at_equal("seconds")),
    ]


def _validated(measured: CellResults, epochs: pd.DataFrame) -> Verdict:
    """Whether training data choose the batch size that is best on validation data."""
    findings = []
    for optimizer, own in epochs.groupby("group", sort=False):
        chosen = choice(measured.sizes(own, "train_accuracy"), measured.sizes(own, "val_accuracy"))
        gap = (own.train_accuracy - own.val_accuracy).astype(float).mean()
        words = f"{chosen.evidence}; accuracy on training data differs by {gap:+.3f}"
        findings.append(ClaimCase(chosen.case, words).of(f"{optimizer}, on validation data"))
    return Verdict.by(
        "Accuracy on the training data tells which batch size is best.",
        "a public cats-vs-dogs case study, which passes its training iterator as validation",
        findings,
    )


def _small_is_best(measured: CellResults, epochs: pd.DataFrame) -> Verdict:
    """Whether a small batch is more accurate than all larger ones."""
    findings = []
    for optimizer, own in epochs.groupby("group", sort=False):
        sizes = measured.sizes(own, "val_accuracy")
        small = [each for each in sizes if each.size <= SMALL]
        large = [each for each in sizes if each.size > SMALL]
        findings.append(contrast(small, large).of(str(optimizer)))
    return Verdict.by(
        f"At equal epochs a small batch ({SMALL} or less) is the most accurate.",
        "Masters & Luschi 2018, arXiv:1804.07612",
        findings,
    )


def _same_at_time(measured: CellResults, epochs: pd.DataFrame, seconds: pd.DataFrame) -> Verdict:
    """Whether the best batch at equal epochs is the best at equal time."""
    findings = []
    for optimizer, own in epochs.groupby("group", sort=False):
        at_time = measured.sizes(seconds[seconds.group == optimizer], "val_accuracy")
        chosen = choice(measured.sizes(own, "val_accuracy"), at_time)
        findings.append(chosen.of(f"{optimizer}, by epochs and at equal time"))
    return Verdict.by(
        "The best batch size at equal epochs is the best at equal time.",
        "what comparing by epochs assumes",
        findings,
    )


STUDY = Study(
    name="optimizers",
    title="Accuracy against batch size, for SGD and Adam",
    question=(
        "Which batch size is best at equal epochs, with SGD and with Adam? And which at equal time?"
    ),
    published=Setting(image_size=200, epochs=5, seeds=3),
    quick=Setting(image_size=32, epochs=2, seeds=1, quick=True),
    cells=cells,
    timed_cells=timed(cells),
    tables=tables,
    verdicts=verdicts,
)
