"""The study `techniques`: what each means to a larger batch costs and buys, on ResNet50."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from kbatch.recipe import Recipe
from kbatch.studies.cell import STEPS, Cell, CellResults, Length, Setting, StudyTable, mean_text
from kbatch.studies.study import Case, ClaimCase, Study, Verdict, megabytes
from kbatch.studies.trainings import ceiling_of
from kbatch.text_table import TextTable

MODEL, QUICK_MODEL = "resnet50", "small-resnet"
# SGD with momentum 0.9, as published. The decay is decoupled, where the published one is an L2
# penalty: with plain SGD both take the same off a weight in the first update.
RATE, DECAY = 0.001, 1e-4
PLAIN, COMBINED = "none", "combined"
TIMES = 4  # the batch that is claimed of all techniques together
AUTOTUNE, DEFAULT = ({"TF_CUDNN_USE_AUTOTUNE": value} for value in "01")
# Each technique: what it adds to the plain recipe, and the environment of its process.
RUNGS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    PLAIN: ({}, DEFAULT),
    "cuDNN autotuner off": ({}, AUTOTUNE),
    "mixed_float16": ({"policy": "mixed_float16"}, DEFAULT),
    "recompute, by stages": ({"recompute": "stages"}, DEFAULT),
    "recompute, 2 segments": ({"recompute": "segments:2"}, DEFAULT),
    "recompute, 4 segments": ({"recompute": "segments:4"}, DEFAULT),
    "recompute, optimal": ({"recompute": "minimal"}, DEFAULT),
    f"accumulation, {STEPS} passes": ({}, DEFAULT),
    COMBINED: ({"policy": "mixed_float16", "recompute": "minimal"}, AUTOTUNE),
}
QUICK = (PLAIN, "recompute, optimal", f"accumulation, {STEPS} passes")


def model_of(setting: Setting) -> str:
    """Return the name of the network: a quick study takes a small one."""
    return setting.either(MODEL, QUICK_MODEL)


def rungs(setting: Setting) -> dict[str, Recipe]:
    """Return the recipe of each technique, whose largest batch is found first."""
    return {name: _rung(name) for name in setting.either(tuple(RUNGS), QUICK)}


def _rung(name: str) -> Recipe:
    """The recipe of a technique; it accumulates where the technique does, which takes memory."""
    axes: dict[str, Any] = {**RUNGS[name][0], "weight_decay": DECAY}
    if _accumulates(name):
        axes["micro_batch_size"] = 1
    return Recipe(STEPS if _accumulates(name) else 1, "sgd", RATE, **axes)


def _accumulates(name: str) -> bool:
    return name.startswith("accumulation") or name == COMBINED


def cells(setting: Setting, largest: Mapping[str, int]) -> list[Cell]:
    """Return a cell for each technique and seed, which trains at its largest batch."""
    return [
        Cell(
            name,
            _at(recipe, name, largest[name]),
            Length(setting.epochs, "epochs"),
            seed,
            model_of(setting),
            memory_limit=setting.memory_limit,
            environment=RUNGS[name][1],
        )
        for seed in range(setting.seeds)
        for name, recipe in rungs(setting).items()
    ]


def _at(recipe: Recipe, name: str, largest: int) -> Recipe:
    """The recipe at its largest batch, accumulated where the technique is accumulation."""
    steps = STEPS if _accumulates(name) else 1
    micro = None if steps == 1 else largest
    return replace(recipe, batch_size=largest * steps, micro_batch_size=micro)


def tables(measured: CellResults) -> list[StudyTable]:
    """Return the ladder: batch, epoch seconds, bytes, best accuracy and its epoch."""
    ceiling = ceiling_of(measured.sample.train)
    lines = []
    for name, own in measured.frame.groupby("group", sort=False):
        epochs = own.length.iloc[0]
        micro, batch = int(own.micro_batch_size.iloc[0]), int(own.batch_size.iloc[0])
        mark = "≥ " if micro >= ceiling else ""
        lines.append(
            [
                str(name),
                f"{mark}{micro:,}",
                f"{mark}{batch:,}",
                mean_text(own.train_seconds / epochs, 1),
                mean_text(own.peak_bytes, 1, 1e-6),
                mean_text(own.best_accuracy),
                mean_text(own.best_share * epochs, 1),
            ]
        )
    headings = ["technique", "one pass", "batch", "s/epoch", "peak (MB)"]
    return [
        StudyTable(
            "SGD, each technique at the largest batch that trains",
            TextTable([*headings, "best val_accuracy", "its epoch"], lines),
            f"Memory limit: {megabytes(measured.setting.memory_limit)}. A pass takes at most "
            f"{ceiling:,} pictures, a quarter of those to train on. Where it takes as many (≥), "
            "memory did not bound it.",
        )
    ]


def verdicts(measured: CellResults) -> list[Verdict]:
    """Return what became of the larger batch, with accumulated passes and without them."""
    sides = _sides(measured)
    source = "a public ladder of ResNet-50 on cats vs dogs"
    return [
        Verdict.by(
            f"The techniques together let a batch of at least {TIMES} times the size train.",
            source,
            [_ratio(sides, "batch_size").of(f"with {STEPS} accumulated passes")],
        ),
        Verdict.by(
            f"The techniques together let one pass take at least {TIMES} times the pictures.",
            f"{source}, without its accumulated passes: they alone make {STEPS} times",
            [_ratio(sides, "micro_batch_size").of("in one pass")],
        ),
    ]


def _sides(measured: CellResults) -> list[pd.DataFrame]:
    """The rows without any technique and with all, the pass of each marked if at the ceiling."""
    frame = measured.frame
    full = frame.micro_batch_size >= ceiling_of(measured.sample.train)
    marked = frame.assign(full=full)
    return [marked[marked.group == name] for name in (PLAIN, COMBINED)]


def _ratio(sides: list[pd.DataFrame], column: str) -> ClaimCase:
    """Whether a size with all techniques is `TIMES` that without any.

    The finder tells sizes by bytes, not by seeds: one answer of it decides.
    """
    if any(side.empty or side.val_accuracy.isna().any() for side in sides):
        return ClaimCase("missing", "not all techniques were trained")
    plain, combined = (int(side[column].iloc[0]) for side in sides)
    marks = ["≥ " if side.full.any() else "" for side in sides]
    words = f"{marks[0]}{plain:,} -> {marks[1]}{combined:,}"
    if any(marks):
        return ClaimCase("undecided", f"{words}, where pictures, not memory, bound the pass")
    case: Case = "yes" if combined >= TIMES * plain else "no"
    return ClaimCase(case, f"{words} ({combined / plain:.1f}x)")


STUDY = Study(
    name="techniques",
    title="Techniques for a larger batch",
    question=(
        "What does each technique buy and cost: mixed precision, recompute, accumulation, and all "
        "together? From random weights, by SGD with momentum 0.9, rate 0.001, weight decay 1e-4."
    ),
    published=Setting(image_size=224, epochs=10, seeds=1),
    quick=Setting(image_size=32, epochs=1, seeds=1, memory_limit=200 * 10**6, quick=True),
    rungs=rungs,
    cells=cells,
    tables=tables,
    verdicts=verdicts,
    drawn="",
    least_image_size=32,  # of ResNet50
    takes=("image_size", "epochs", "seeds", "memory_limit"),
)
