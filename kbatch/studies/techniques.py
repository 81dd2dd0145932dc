"""The study `techniques`: what each means to a larger batch costs and buys, on ResNet50."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from kbatch.recipe import Recipe
from kbatch.studies.cell import STEPS, Cell, Length
from kbatch.studies.measured import Measured
from kbatch.studies.setting import Setting
from kbatch.studies.study import Study
from kbatch.studies.study_table import NOTHING, StudyTable, mean_text
from kbatch.studies.verdict import Finding, Verdict

MODEL, QUICK_MODEL = "resnet50", "small-resnet"
# SGD with momentum 0.9, as published. The decay is decoupled, where the published one is an L2
# penalty: with plain SGD both take the same off a weight in the first update.
RATE, DECAY = 0.001, 1e-4
PLAIN, COMBINED = "none", "combined"
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
    return QUICK_MODEL if setting.quick else MODEL


def rungs(setting: Setting) -> dict[str, Recipe]:
    """Return the recipe of each technique, whose largest batch is found first."""
    names = QUICK if setting.quick else tuple(RUNGS)
    return {
        name: Recipe(1, "sgd", RATE, weight_decay=DECAY, **RUNGS[name][0])  # type: ignore[arg-type]
        for name in names
    }


def cells(setting: Setting, largest: Mapping[str, int]) -> list[Cell]:
    """Return a cell for each technique and seed, which trains at its largest batch.

    Args:
        setting: The setting of the study.
        largest: The largest micro-batch of each technique; at most a quarter of the pictures.
    """
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
    steps = STEPS if name.startswith("accumulation") or name == COMBINED else 1
    micro = None if steps == 1 else largest
    return replace(recipe, batch_size=largest * steps, micro_batch_size=micro)


def tables(measured: Measured) -> list[StudyTable]:
    """Return the ladder: batch, epoch seconds, bytes, best accuracy and its epoch."""
    frame = measured.frame
    lines = []
    for name in frame.group.unique():
        own = frame[frame.group == name]
        epochs = own.length.iloc[0]
        lines.append(
            [
                name,
                f"{own.batch_size.iloc[0]:,}",
                mean_text(own.train_seconds / epochs, 1),
                mean_text(own.peak_bytes, 1, 1e-6),
                mean_text(own.best_accuracy),
                mean_text(own.best_share * epochs, 1) if own.best_share.any() else NOTHING,
            ]
        )
    headings = ["technique", "batch", "s/epoch", "peak (MB)", "best val_accuracy", "its epoch"]
    return [
        StudyTable(
            "SGD, each technique at the largest batch that fits",
            pd.DataFrame(lines, columns=headings),
            "A pass takes at most a quarter of the training pictures. A quick study has a small "
            "residual network in the place of ResNet50.",
        )
    ]


def verdicts(measured: Measured) -> list[Verdict]:
    """Return what became of the larger batch and of its price."""
    sizes = measured.frame.groupby("group").batch_size.first()
    claim = "The techniques together let a batch of at least 4 times the size train."
    source = "a public ladder of ResNet-50 on cats vs dogs"
    if PLAIN not in sizes or COMBINED not in sizes:
        return [Verdict.by(claim, source, [Finding("missing", "not all techniques were measured")])]
    ratio = sizes[COMBINED] / sizes[PLAIN]
    words = f"{sizes[PLAIN]} -> {sizes[COMBINED]} ({ratio:.1f}x)"
    return [Verdict.by(claim, source, [Finding("yes" if ratio >= 4 else "no", words)])]


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
    takes=("image_size", "epochs", "seeds", "memory_limit"),
)
