"""The study `throughput`: step time, speed, load and memory against batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from kbatch.recipe import Recipe
from kbatch.studies.cell import (
    NOTHING,
    Cell,
    CellResults,
    Length,
    Setting,
    StudyTable,
    compared,
    mean_text,
)
from kbatch.studies.study import CASES, ClaimCase, Study, Verdict, missing
from kbatch.text_table import TextTable

SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
QUICK_SIZES = (4, 16, 64)
UPDATES, QUICK_UPDATES = 30, 8
NEARLY = 0.95  # of the best speed is fast enough
# OpenNN's own benchmark of a small CNN on MNIST, read in 2026: examples per second by batch size.
# https://www.opennn.net/blog/cnn-training-speed-gpu-opennn-vs-pytorch-vs-tensorflow/
PUBLISHED = {
    "OpenNN": {128: 195_000, 1024: 397_259},
    "PyTorch": {128: 111_241, 1024: 298_947},
    "TensorFlow": {128: 55_339, 1024: 134_307},
}


def cells(setting: Setting, largest: Mapping[str, int]) -> list[Cell]:
    """Return one cell for each size, of as many updates."""
    updates = Length(setting.either(UPDATES, QUICK_UPDATES), "updates")
    return [
        Cell("adam", Recipe(size, "adam", 0.001), updates, seed)
        for seed in range(setting.seeds)
        for size in setting.either(SIZES, QUICK_SIZES)
    ]


def tables(measured: CellResults) -> list[StudyTable]:
    """Return what was measured here, and the published speeds."""
    return [_measured(measured.frame), _published()]


def _measured(frame: pd.DataFrame) -> StudyTable:
    speeds = _speeds(frame)
    best = speeds.max()
    lines = []
    for size, own in frame.groupby("batch_size"):
        lines.append(
            [
                str(size),
                mean_text(own.step_seconds, 2, 1e3),
                mean_text(own.batch_size / own.step_seconds, 0),
                f"{speeds[size] / best:.0%}" if size in speeds else NOTHING,
                mean_text(own.gpu_percent, 0),
                mean_text(own.peak_bytes, 1, 1e-6),
            ]
        )
    headings = ["batch", "ms/update", "examples/s", "of best", "GPU load (%)", "peak (MB)"]
    note = ""
    if len(speeds):
        note = f"The smallest batch within 5 % of the best speed is {_smallest_fast(speeds)}."
    return StudyTable(
        "Update time, speed, load and memory; every update waits for the device",
        TextTable(headings, lines),
        note,
    )


def _published() -> StudyTable:
    sizes = sorted({size for speeds in PUBLISHED.values() for size in speeds})
    lines = [
        [name, *(f"{speeds[size]:,}" if size in speeds else NOTHING for size in sizes)]
        for name, speeds in PUBLISHED.items()
    ]
    return StudyTable(
        "Published by OpenNN: examples/s of a small CNN on MNIST, on a laptop's GPU",
        TextTable(["framework", *map(str, sizes)], lines),
        "Another model, other pictures and another machine: only the ratio of two sizes compares.",
    )


def _speeds(frame: pd.DataFrame) -> pd.Series:
    """Mean examples per second by batch size, as the table and the verdict say them."""
    known = frame.dropna(subset=["step_seconds"])
    speeds = known.batch_size / known.step_seconds.astype(float)
    return speeds.groupby(known.batch_size).mean()


def _smallest_fast(speeds: pd.Series) -> int:
    return int(speeds[speeds >= NEARLY * speeds.max()].index.min())


def verdicts(measured: CellResults) -> list[Verdict]:
    """Return whether a batch of 1024 is as much faster than one of 128 as published."""
    ratios = ", ".join(
        f"{name} {published[1024] / published[128]:.1f}x" for name, published in PUBLISHED.items()
    )
    return [
        Verdict.by(
            "A batch of 1024 trains a small CNN at least 2 times as fast as one of 128.",
            f"opennn.net, CNN training speed ({ratios})",
            [_twice(measured)],
        )
    ]


def _twice(measured: CellResults) -> ClaimCase:
    """Whether a batch of 1024 is at least twice as fast as one of 128."""
    frame = measured.frame
    frame = frame.assign(speed=frame.batch_size / frame.step_seconds.astype(float))
    speeds = {each.size: each for each in measured.sizes(frame, "speed")}
    sides = [speeds[size] for size in (1024, 128) if size in speeds]
    lacking = missing(sides[:1], sides[1:])
    if lacking is not None:
        return lacking
    fast, slow = sides
    ratio = fast.mean / slow.mean
    words = (
        f"{ratio:.2f}x here: {mean_text(fast.values, 0)} examples/s at batch 1024, "
        f"{mean_text(slow.values, 0)} at batch 128"
    )
    comparison = compared(fast, slow.times(2))
    if math.isinf(comparison.half_width):
        words = f"{words} ({comparison})"
    return ClaimCase(CASES[comparison.answer], words)


STUDY = Study(
    name="throughput",
    title="Speed, load and memory against batch size",
    question=("From which batch size on does a larger one buy no speed, with Adam?"),
    published=Setting(image_size=64, epochs=1, seeds=3),
    quick=Setting(image_size=32, epochs=1, seeds=1, quick=True),
    cells=cells,
    tables=tables,
    verdicts=verdicts,
    drawn="examples_per_second",
    axis="examples per second",
    takes=("image_size", "seeds"),
)
