"""Recompute saves memory, costs little time, and changes nothing (R)."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from gpu_models import MINUTES, builder, noise

from kbatch import Recipe, recompute
from kbatch.cli.gpu_check import Result, Scale
from kbatch.memory._find import find_max_batch
from kbatch.runtime import device_memory

STRATEGIES = ("minimal", "sqrt", "stages")
LEAST_SAVED, MOST_TIME = 0.3, 1.4
SAVES = "resnet50"  # the model that must save so much
EQUAL = 1e-5
BATCH_SIZE = 32
LOSS = "binary_crossentropy"
SLOW = pytest.mark.unrehearsed(MINUTES)


@pytest.mark.gpu(
    "R1",
    "peak -30 % or better on ResNet50, seconds <= 1.4 times; stored for each strategy",
    seconds_limit=600,
    expected_seconds=60,
)
@pytest.mark.parametrize(
    "name",
    [
        "small-resnet",
        pytest.param("resnet50", marks=SLOW),
        pytest.param("mobilenetv2", marks=SLOW),
    ],
)
def test_each_strategy_saves_memory(scale: Scale, name: str) -> Result:
    """R1: measure peak and seconds of each strategy against none."""
    device_memory.apply_limit(None)
    model = builder(name, scale)()
    model.compile(keras.optimizers.SGD(0.001), LOSS, jit_compile=False)
    x, y = noise(model.input_shape[1:], BATCH_SIZE)
    plain = recompute.measure(model, recompute.plan(model, BATCH_SIZE, "none"), x, y)
    peak, seconds = plain.measured_peak_bytes or 0, plain.measured_seconds or 0.0
    measured: dict[str, Any] = {"none": {"peak_bytes": peak, "seconds": seconds}}
    best, slowest = 0.0, 0.0
    for strategy in STRATEGIES:
        told = recompute.measure(model, recompute.plan(model, BATCH_SIZE, strategy), x, y)
        saved = 1 - (told.measured_peak_bytes or 0) / max(peak, 1)
        ratio = (told.measured_seconds or 0.0) / max(seconds, 1e-9)
        measured[strategy] = {
            "saved": saved,
            "seconds_ratio": ratio,
            "segments": len(told.segments),
        }
        best, slowest = max(best, saved), max(slowest, ratio)
    saves = min(peak, seconds) > 0 and best >= (LEAST_SAVED if name == SAVES else 0.0)
    if scale.rehearsed:
        return Result(saves, measured, "not rehearsed: the seconds")
    return Result(saves and slowest <= MOST_TIME, measured)


@pytest.mark.gpu(
    "R2",
    "recompute and plain training differ by < 1e-5, traced 10 times, with determinism on",
    seconds_limit=600,
    expected_seconds=40,
)
def test_recompute_changes_nothing(scale: Scale) -> Result:
    """R2: train with and without a plan, traced anew each time, with determinism on."""
    tf.config.experimental.enable_op_determinism()
    reports = []
    for seed in range(scale.retraces):
        keras.utils.set_random_seed(seed)
        model = builder("small-resnet", scale)()
        model.compile(keras.optimizers.SGD(0.01), LOSS, jit_compile=False)
        x, y = noise(model.input_shape[1:], scale.batch_size)
        plan = recompute.plan(model, scale.batch_size, "sqrt")
        reports.append(recompute.verify(model, plan, x, y))
    gaps = {
        name: max(getattr(report, name) for report in reports)
        for name in ("loss", "gradients", "weights", "state")
    }
    measured = {**gaps, "exact": sum(report.exact for report in reports), "of": len(reports)}
    return Result(all(gap < EQUAL for gap in gaps.values()), measured)


@pytest.mark.gpu(
    "R3", "the finder answers for an LSTM with recompute", expected_seconds=40, shares=True
)
@pytest.mark.unrehearsed("Keras takes cuDNN's LSTM where it sees a GPU")
def test_the_largest_batch_of_an_lstm(scale: Scale) -> Result:
    """R3: find the largest batch of an LSTM with recompute."""
    recipe = Recipe(optimizer="sgd", learning_rate=1e-3, recompute="minimal")
    found = find_max_batch(
        builder("lstm", scale),
        recipe=recipe,
        memory_limit=scale.limit_bytes,
        ceiling=512,
        loss=LOSS,
    )
    return Result(found.batch_size > 0, {"said": str(found), "seconds": found.seconds})
