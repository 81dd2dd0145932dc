"""Group T: trainings of recipes, one after another."""

from __future__ import annotations

import gc
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import keras_tuner
import psutil
import tensorflow as tf

import kbatch
from kbatch import Outcome, Recipe, Space
from kbatch.data.case_study import pictures
from kbatch.gpu_checks import _nvidia_smi
from kbatch.gpu_checks._data import builder, noise
from kbatch.gpu_checks.check import Result
from kbatch.gpu_checks.scale import Scale
from kbatch.model_spec import ModelSpec
from kbatch.models.case_study import cnn
from kbatch.models.maker import ModelMaker
from kbatch.runtime import device_memory
from kbatch.space import combinations

LOSS = "binary_crossentropy"
NEAR, CHANCE = 0.05, 0.5
MOST_SKIPPED = 5
BACK, GROWN_BYTES = 0.02, 200 * 10**6
WARM, TIMED = 3, 10  # steps


def policy(scale: Scale, name: str, jit: str) -> Result:
    """T1: train by a policy, with augmentation, jitted or not, for some seconds."""
    device_memory.apply_limit(None)
    more: dict[str, Any] = {"jit_compile": jit == "jit", "augmentation": "flip_shift"}
    recipe = Recipe(scale.batch_size, "adam", 0.001, policy=name, **more)
    _, outcome = _trained(scale, recipe)
    problems = {
        f"it ended by {outcome.ended}": outcome.ended != "horizon",
        "its seconds are not the horizon": abs(outcome.train_seconds - scale.seconds)
        > max(NEAR * scale.seconds, outcome.median_update_seconds or 0.0),
        f"its value is {outcome.value}": not (outcome.value or 0.0) > CHANCE,
        "its peak of memory is missing": not outcome.peak_bytes,
        "the load of the GPU is missing": not outcome.utilisation and not scale.rehearsed,
    }
    there = [problem for problem, is_there in problems.items() if is_there]
    text = "; ".join(there) or "not rehearsed: the load of the GPU" * scale.rehearsed
    return Result(not there, _told(outcome), text)


def skipped(scale: Scale) -> Result:
    """T2: count the updates that loss scaling skipped."""
    device_memory.apply_limit(None)
    recipe = Recipe(scale.batch_size, "sgd", 0.01, policy="mixed_float16")
    model, outcome = _trained(scale, recipe)
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    missing = outcome.updates - int(optimizer.iterations)
    measured = {"updates_less_iterations": missing, "skipped_updates": outcome.skipped_updates}
    return Result(0 <= missing < MOST_SKIPPED, {**measured, **_told(outcome)})


def baseline(scale: Scale) -> Result:
    """T3.axis: whether the baseline is jitted, and whether the default space is so too."""
    spec = ModelSpec(builder("cnn", scale), loss=LOSS)
    jit = ModelMaker.of(spec).baseline(Recipe()).jit_compile
    axis = sorted({each.jit_compile for each in combinations(Space())})
    text = "" if jit in axis else "the baseline is trained as no recipe of the default space is"
    return Result(jit in axis, {"baseline": jit, "default_space": axis}, text)


def jit_seconds(scale: Scale, name: str) -> Result:
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


def twice(scale: Scale) -> Result:
    """T4: train twice with the same seed, and store how far the curves are apart."""
    device_memory.apply_limit(None)
    recipe = Recipe(scale.batch_size, "sgd", 0.01)
    outcomes = [_trained(scale, recipe, epochs=1)[1] for _ in range(2)]
    values = [[value for _, value in outcome.curve] for outcome in outcomes]
    gaps = [abs(a - b) for a, b in zip(*values, strict=False)]
    measured = {"gaps": gaps, "values": values[0]}
    same_length = len(values[0]) == len(values[1]) > 0
    return Result(same_length and all(map(math.isfinite, gaps)), measured)


def many(scale: Scale) -> Result:
    """T5: search over many short trials, jitted and not; memory must come back after each."""
    device_memory.apply_limit(None)
    side = min(scale.image_size, 64)
    x, y = noise((side, side, 3), 10 * scale.batch_size)
    bytes_now, used, resident = list[int](), list[int](), list[int]()

    def build() -> keras.Model:
        gc.collect()
        bytes_now.append(device_memory.bytes_now() or 0)
        used.append(_nvidia_smi.used_bytes_of_first() or 0)
        resident.append(psutil.Process().memory_info().rss)
        return cnn(side)

    space = Space(batch_size=scale.batch_size, policy="float32", jit_compile=(False, True))
    spec = ModelSpec(build, loss=LOSS, metrics=["accuracy"])
    hypermodel = kbatch.HyperModel(spec, space, seconds_per_trial=scale.seconds / 3)
    folder = Path(tempfile.mkdtemp())
    tuner = keras_tuner.RandomSearch(
        hypermodel,
        objective=kbatch.objective(),
        max_trials=scale.trials,
        directory=folder,
        seed=1,
    )
    tuner.search(x, y, validation_data=(x, y), verbose=0)
    build()
    early = len(bytes_now) // 2  # by then every library has been loaded
    back = bytes_now[-1] - bytes_now[0] <= max(BACK * max(bytes_now), 1 << 20)
    grown = used[-1] - used[early]
    text = "not rehearsed: what the driver says is used" * scale.rehearsed
    measured = {"bytes_now": bytes_now, "used_bytes": used, "host_bytes": resident}
    passed = max(bytes_now) > 0 and back and grown < GROWN_BYTES
    return Result(passed, {**measured, "grown_bytes": grown}, text)


def _trained(
    scale: Scale, recipe: Recipe, epochs: int | None = None
) -> tuple[keras.Model, Outcome]:
    """Train the case study's model on drawn pictures, for seconds or for epochs."""
    side = 32 if scale.rehearsed else 64
    data = pictures("drawn", image_size=side)
    seconds = scale.seconds if epochs is None else None
    arguments: dict[str, Any] = {"seconds": seconds, "epochs": epochs, "loss": LOSS}
    arguments["metrics"] = ["accuracy"]
    tf.keras.utils.set_random_seed(0)
    return kbatch.train(recipe, lambda: cnn(side), *data.train, data.validation, **arguments)


def _told(outcome: Outcome) -> dict[str, Any]:
    return {
        "ended": outcome.ended,
        "value": outcome.value,
        "train_seconds": outcome.train_seconds,
        "updates": outcome.updates,
        "median_update_seconds": outcome.median_update_seconds,
        "examples_per_second": outcome.examples_per_second,
        "peak_bytes": outcome.peak_bytes,
        "utilisation": dict(outcome.utilisation),
        "remarks": list(outcome.remarks),
        "message": outcome.message,
    }
