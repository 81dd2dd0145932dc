"""The cost of measuring the gradient noise scale during training, per weight update.

Usage: python scripts/bench_noise_scale.py [--rounds 60] [--models mlp,cnn,small-resnet,resnet50]
[--jit] [--policy mixed_float16] [--passes 4] [--clock wall|cpu] [--out FILE]

Each model is compiled twice for the same recipe, which accumulates. One copy measures the noise
scale and one does not, and they take turns: an update of the one, an update of the other, in the
other order the next time. Only the train step is timed, on batches that lie in memory; the clock
waits for the device. The script prints for each model the ratio of the median seconds of an update,
a 95 % bootstrap interval of that ratio, and the ratio of the fastest updates, which other work on
the machine disturbs least.
"""

import argparse
import contextlib
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import rows
import tensorflow as tf

from kbatch.models.case_study import MODELS
from kbatch.models.compilation import CompileArguments
from kbatch.models.gradient_noise import INTERVAL, measured
from kbatch.models.maker import ModelMaker
from kbatch.models.policies import policy_scope
from kbatch.recipe import Recipe
from kbatch.runtime import device_memory

IMAGE_SIZE = 64
WARM_UP = 3  # rounds that are not counted
COLUMNS = (
    "model",
    "recipe",
    "updates",
    "plain_ms",
    "measured_ms",
    "ratio",
    "low",
    "high",
    "fastest",
)


def mlp():
    """A small network on 20 floats, whose steps are mostly overhead: the worst case."""
    return keras.Sequential(
        [
            keras.Input((20,)),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dense(1, "sigmoid", dtype="float32"),
        ]
    )


def resnet50():
    """161 weights, many of them small."""
    return keras.applications.ResNet50(
        weights=None, input_shape=(96, 96, 3), classes=1, classifier_activation="sigmoid"
    )


# the function that builds each model, and the examples of a pass
KNOWN = {
    "mlp": (mlp, 32),
    "cnn": (lambda: MODELS["cnn"](IMAGE_SIZE), 32),
    "small-resnet": (lambda: MODELS["small-resnet"](IMAGE_SIZE), 32),
    "resnet50": (resnet50, 8),
}


def train_function(model, recipe, scope):
    """Return Keras' compiled train function of a model, made inside a scope."""
    with policy_scope(recipe.policy, "float32"), scope(model, recipe):
        model.make_train_function()
        function = model.train_function
        function(batches(model, recipe))  # traced here
    return function


def batches(model, recipe):
    """Return an endless iterator over one batch in memory."""
    rng = np.random.default_rng(0)
    shape = (recipe.examples_per_pass, *model.inputs[0].shape[1:])
    x = rng.uniform(0, 255 if len(shape) == 4 else 1, shape).astype("float32")
    y = rng.integers(0, 2, (len(x), 1)).astype("float32")
    return iter(tf.data.Dataset.from_tensors((x, y)).cache().repeat().prefetch(2))


def unmeasured(model, recipe):
    return contextlib.nullcontext()


def seconds_of_updates(build, recipe, rounds, now):
    """Return the seconds of updates without and with measurement, an array of two columns."""
    maker = ModelMaker(build, CompileArguments("binary_crossentropy", ["accuracy"]))
    models = [maker.make(recipe) for _ in range(2)]
    scopes = [unmeasured, measured]
    steps = [train_function(*each) for each in zip(models, [recipe] * 2, scopes, strict=True)]
    data = [batches(model, recipe) for model in models]
    found = np.zeros((rounds, 2))
    for number in range(-WARM_UP, rounds):
        for way in (0, 1) if number % 2 else (1, 0):
            began = now()
            for _ in range(recipe.accumulation_steps * INTERVAL):
                steps[way](data[way])
            device_memory.wait()
            if number >= 0:
                found[number, way] = (now() - began) / INTERVAL
    return found


def interval(found):
    """Return the 95 % interval of the ratio of medians, over bootstrap samples of the rounds."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(found), (1000, len(found)))
    medians = np.median(found[picks], axis=1)
    return np.quantile(medians[:, 1] / medians[:, 0], (0.025, 0.975))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--models", default=",".join(KNOWN))
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--policy", default="float32")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for name in options.models.split(","):
        build, size = KNOWN[name]
        recipe = Recipe(
            size * options.passes,
            "sgd",
            1e-3,
            policy=options.policy,
            micro_batch_size=size,
            jit_compile=options.jit,
        )
        now = {"wall": time.perf_counter, "cpu": time.process_time}[options.clock]
        found = seconds_of_updates(build, recipe, options.rounds, now)
        plain, with_noise = np.median(found, axis=0)
        fastest = found[:, 1].min() / found[:, 0].min()
        values = [1e3 * plain, 1e3 * with_noise, with_noise / plain, *interval(found), fastest]
        cells = [name, str(recipe), len(found), *(round(float(value), 3) for value in values)]
        row = dict(zip(COLUMNS, cells, strict=True))
        if options.out:
            rows.append(options.out, COLUMNS, row)
        else:
            print(", ".join(f"{column} {value}" for column, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
