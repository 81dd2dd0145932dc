"""Trainings of recipes, one after another (T)."""

from __future__ import annotations

import gc
import math
import statistics
import tempfile
import time
from itertools import product
from pathlib import Path

import keras
import psutil
import pytest
from gpu_models import MINUTES, builder, noise

import kbatch
from kbatch import Recipe, Space
from kbatch.cli import quick_checks
from kbatch.cli.gpu_check import Result, Scale
from kbatch.cli.quick_checks import told, trained, used_bytes
from kbatch.cli.search_run import tuner_of
from kbatch.model_spec import ModelSpec
from kbatch.models.case_study import cnn
from kbatch.models.maker import ModelMaker
from kbatch.runtime import device_memory
from kbatch.space import combinations

LOSS = "binary_crossentropy"
MOST_SKIPPED = 5
BACK, GROWN_BYTES = 0.02, 200 * 10**6
WARM, TIMED = 3, 10  # steps
SLOW = pytest.mark.unrehearsed("a CPU is slow at 16 bits")
# `doctor --gpu` has float32, plain
POLICIES = [
    pytest.param(policy, jit, marks=[] if policy == "float32" else [SLOW])
    for policy, jit in product(("float32", "mixed_float16", "mixed_bfloat16"), ("plain", "jit"))
    if (policy, jit) != ("float32", "plain")
]


@pytest.mark.gpu(
    "T1",
    "ended by the horizon, seconds within 5 % of it, value > 0.5, load of the GPU told",
    seconds_limit=180,
)
@pytest.mark.parametrize(("policy", "jit"), POLICIES)
def test_every_policy_trains(scale: Scale, policy: str, jit: str) -> Result:
    """T1: train by a policy, with augmentation, jitted or not, for some seconds."""
    return quick_checks.policy(scale, policy, jit)


@pytest.mark.gpu("T2", "mixed_float16: updates less iterations are >= 0 and < 5", seconds_limit=180)
def test_skipped_updates_are_counted(scale: Scale) -> Result:
    """T2: count the updates that loss scaling skipped."""
    device_memory.apply_limit(None)
    recipe = Recipe(scale.batch_size, "sgd", 0.01, policy="mixed_float16")
    model, outcome = trained(scale, recipe)
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    missing = outcome.updates - int(optimizer.iterations)
    measured = {"updates_less_iterations": missing, "skipped_updates": outcome.skipped_updates}
    return Result(0 <= missing < MOST_SKIPPED, {**measured, **told(outcome)})


@pytest.mark.gpu("T3.axis", "the baseline's jit_compile is in the default space", seconds_limit=90)
def test_the_baseline_is_in_the_space(scale: Scale) -> Result:
    """T3.axis: whether the baseline is jitted, and whether the default space is so too."""
    spec = ModelSpec(builder("cnn", scale), loss=LOSS)
    jit = ModelMaker.of(spec).baseline(Recipe()).jit_compile
    axis = sorted({each.jit_compile for each in combinations(Space())})
    text = "" if jit in axis else "the baseline is trained as no recipe of the default space is"
    return Result(jit in axis, {"baseline": jit, "default_space": axis}, text)


@pytest.mark.gpu(
    "T3",
    "seconds of a step with and without XLA are stored",
    seconds_limit=400,
    expected_seconds=60,
)
@pytest.mark.parametrize(
    "name",
    [
        "cnn",
        "small-resnet",
        pytest.param("resnet50", marks=pytest.mark.unrehearsed(MINUTES)),
    ],
)
def test_seconds_with_and_without_xla(scale: Scale, name: str) -> Result:
    """T3: store the seconds of a step with and without XLA, and of its compilation."""
    device_memory.apply_limit(None)
    measured = {}
    for jit in (False, True):
        model = builder(name, scale)()
        model.compile(keras.optimizers.SGD(0.001), LOSS, jit_compile=jit)
        x, y = noise(model.input_shape[1:], scale.batch_size)
        times = []
        for _ in range(WARM + TIMED):
            began = time.perf_counter()
            model.train_on_batch(x, y)
            device_memory.wait()
            times.append(time.perf_counter() - began)
        word = "jitted" if jit else "plain"
        measured[f"{word}_first_seconds"] = times[0]
        measured[f"{word}_seconds"] = statistics.median(times[WARM:])
    measured["jitted_over_plain"] = measured["jitted_seconds"] / measured["plain_seconds"]
    result = Result(all(map(math.isfinite, measured.values())), measured)
    return result.unless_rehearsed(scale.rehearsed, "these are the seconds of a CPU")


@pytest.mark.gpu("T4", "the difference of two curves of the same seed is stored")
def test_two_trainings_of_one_seed(scale: Scale) -> Result:
    """T4: train twice with the same seed, and store how far the curves are apart."""
    device_memory.apply_limit(None)
    recipe = Recipe(scale.batch_size, "sgd", 0.01)
    outcomes = [trained(scale, recipe, epochs=1)[1] for _ in range(2)]
    values = [[value for _, value in outcome.curve] for outcome in outcomes]
    gaps = [abs(a - b) for a, b in zip(*values, strict=False)]
    measured = {"gaps": gaps, "values": values[0]}
    same_length = len(values[0]) == len(values[1]) > 0
    return Result(same_length and all(map(math.isfinite, gaps)), measured)


@pytest.mark.gpu(
    "T5",
    "after a search of 20 trials, jitted and not, the bytes in use are back to 2 % of their "
    "most, and the card's used bytes grew by < 200 MB",
    seconds_limit=400,
    expected_seconds=60,
)
def test_memory_comes_back_after_trials(scale: Scale) -> Result:
    """T5: search over many short trials, jitted and not; memory must come back after each."""
    device_memory.apply_limit(None)
    side = min(scale.image_size, 64)
    x, y = noise((side, side, 3), 10 * scale.batch_size)
    bytes_now, used, resident = list[int](), list[int](), list[int]()

    def build() -> keras.Model:
        gc.collect()
        bytes_now.append(device_memory.bytes_now() or 0)
        used.append(used_bytes() or 0)
        resident.append(psutil.Process().memory_info().rss)
        return cnn(side)

    space = Space(batch_size=scale.batch_size, policy="float32", jit_compile=(False, True))
    spec = ModelSpec(build, loss=LOSS, metrics=["accuracy"])
    hypermodel = kbatch.HyperModel(spec, space, seconds_per_trial=scale.seconds / 3)
    folder = Path(tempfile.mkdtemp())
    tuner = tuner_of("random", hypermodel, scale.trials, folder, seed=0)
    tuner.search(x, y, validation_data=(x, y), verbose=0)
    build()
    early = len(bytes_now) // 2  # by then every library has been loaded
    back = bytes_now[-1] - bytes_now[0] <= max(BACK * max(bytes_now), 1 << 20)
    grown = used[-1] - used[early]
    text = "not rehearsed: what the driver says is used" * scale.rehearsed
    measured = {"bytes_now": bytes_now, "used_bytes": used, "host_bytes": resident}
    passed = max(bytes_now) > 0 and back and grown < GROWN_BYTES
    return Result(passed, {**measured, "grown_bytes": grown}, text)
