"""The benchmark of recomputation: bytes and time of a train step by plan.

The plans are none, uniform sqrt(n), stages, Keras' RematScope("activations"), and kbatch's own.

    python scripts/bench_recompute.py --out scripts/results/recompute.csv
    python scripts/bench_recompute.py --out scripts/results/recompute.csv --jit     # appended

Each row is from processes of its own, where the model is measured and then trained in turn with the
plain one. The ratio of time is the median over the pairs of steps, of CPU seconds, or of wall-clock
seconds on a GPU. `peak_bytes` is the peak of a step above the bytes before it; without XLA it is
the median of three processes. `activation_bytes` is the same, but with XLA, which holds the
gradients of all weights at its peak, their bytes are taken off.

`peak:0.45` is the fastest plan whose peak is predicted at 0.45 times the plain model's. `best` is
the choice of `best_plan`, and `best:0.25` its choice for a budget of 0.25 times the plain model's
measured peak. Rows of the file are not measured again: after Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import rows

SIZES = {
    "ResNet50": (128, 16),
    "MobileNetV2": (96, 32),
    "EfficientNetB0": (96, 32),
    "transformer": (128, 32),
}
JITTED = ("ResNet50", "convolutions")
METHODS = ("none", "sqrt", "stages", "RematScope", "minimal", "best")
PARTIAL = {  # in addition to the others, by model and whether it is jitted
    ("ResNet50", False): ("peak:0.36", "peak:0.45", "peak:0.55"),
    ("transformer", False): ("peak:0.25",),
    ("convolutions", True): ("best:0.25",),
}
PAIRS = 12
# The peak is the median over so many: without XLA the peak of one plan varies between processes.
PROCESSES = 3
COLUMNS = [
    "model",
    "image_size",
    "batch_size",
    "policy",
    "jit_compile",
    "method",
    "segments",
    "activation_bytes",
    "peak_bytes",
    "predicted_bytes",
    "time_ratio",
    "plan_seconds",
    "kept_bytes",
    "extra_predicted",
    "processes",
    "lowest_peak_bytes",
    "highest_peak_bytes",
]


def build(name: str, size: int, jit: bool):
    """Return the model of a name, compiled."""
    import keras
    from keras import layers

    if name == "transformer":
        inputs = keras.Input((size,), dtype="int32")
        x = layers.Embedding(5000, 128)(inputs)
        for _ in range(12):
            attention = layers.Dropout(0.1)(layers.MultiHeadAttention(4, 32)(x, x))
            x = layers.LayerNormalization()(x + attention)
            dense = layers.Dropout(0.1)(layers.Dense(128)(layers.Dense(512, "gelu")(x)))
            x = layers.LayerNormalization()(x + dense)
        model = keras.Model(inputs, layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(x)))
    elif name == "convolutions":
        inputs = x = keras.Input((size, size, 3))
        for _ in range(24):
            x = layers.Conv2D(32, 3, padding="same", activation="gelu")(x)
        model = keras.Model(inputs, layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x)))
    else:
        model = getattr(keras.applications, name)(
            weights=None, input_shape=(size, size, 3), classes=10
        )
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy", jit_compile=jit)
    return model


def measure(
    name: str, size: int, batch: int, jit: bool, method: str, pairs: int
) -> dict[str, object]:
    """Measure the peak in this process, and the ratio of time if there are pairs of steps."""
    import keras
    import tensorflow as tf

    from kbatch import recompute

    x, y = data(name, size, batch)
    gpu = bool(tf.config.list_physical_devices("GPU"))
    clock = time.perf_counter if gpu else time.process_time

    def step(model) -> float:
        began = clock()
        float(model.train_on_batch(x, y))
        return clock() - began

    plan, plan_seconds = None, 0.0
    if method == "RematScope":
        with keras.RematScope(mode="activations"):
            other = build(name, size, jit)
    else:
        other, began = build(name, size, jit), time.perf_counter()
        plan = planned(other, x, y, method)
        plan_seconds = time.perf_counter() - began
        recompute.apply(other, plan)
    # Measured before there is a second model: a user has one.
    peak_bytes = peak(lambda: step(other), "GPU:0" if gpu else "CPU:0")
    ratio = 0.0
    if pairs:
        plain = build(name, size, jit)
        step(plain)
        both = [(step(plain), step(other)) for _ in range(pairs)]
        ratio = statistics.median(after / before for before, after in both)
    gradients = gradient_bytes(other) if jit else 0
    return {
        "model": name,
        "image_size": size,
        "batch_size": batch,
        "policy": keras.config.dtype_policy().name,
        "jit_compile": jit,
        "method": method,
        "segments": len(plan.segments) if plan else "",
        "activation_bytes": peak_bytes - gradients,
        "peak_bytes": peak_bytes,
        "predicted_bytes": plan.peak_bytes if plan else "",
        "time_ratio": round(ratio, 3),
        "plan_seconds": round(plan_seconds, 1),
        "kept_bytes": plan.kept_bytes if plan else "",
        "extra_predicted": round(plan.extra_seconds_ratio, 3) if plan else "",
    }


def data(name: str, size: int, batch: int):
    """Return one batch of random examples for a model, and their labels."""
    import numpy as np

    rng = np.random.default_rng(0)
    if name == "transformer":
        x = rng.integers(0, 5000, (batch, size))
    else:
        x = rng.random((batch, size, size, 3)).astype("float32")
    return x, rng.integers(0, 10, batch)


def peak(step, device: str) -> int:
    """Return the peak bytes of three steps, above the bytes before them."""
    import tensorflow as tf

    for _ in range(2):
        step()
    before = tf.config.experimental.get_memory_info(device)["current"]
    tf.config.experimental.reset_memory_stats(device)
    for _ in range(3):
        step()
    return tf.config.experimental.get_memory_info(device)["peak"] - before


def gradient_bytes(model) -> int:
    """Return the bytes of one gradient of all trainable weights."""
    import numpy as np
    import tensorflow as tf

    return sum(
        int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size
        for variable in model.trainable_variables
    )


def planned(model, x, y, method: str):
    """Return the plan of a method, such as `"best"` or `"peak:0.45"`."""
    from kbatch import recompute

    batch = len(x)
    strategy, _, share = method.partition(":")
    if strategy == "best" and share:
        plain = recompute.measure(model, recompute.plan(model, batch, "none"), x, y)
        budget = float(share) * plain.measured_peak_bytes
        return recompute.best_plan(model, x, y, peak_bytes=budget)
    if strategy == "best":
        return recompute.best_plan(model, x, y)
    if share:
        budget = float(share) * recompute.plan(model, batch, "none").peak_bytes
        return recompute.plan(model, batch, "budget", peak_bytes=budget)
    return recompute.plan(model, batch, strategy)


def row(arguments: tuple[object, ...], jit: bool) -> dict[str, object] | None:
    """Return one row from fresh processes, the first of which is timed; `None` if one failed."""
    first = in_fresh_process((*arguments, PAIRS))
    if first is None:
        return None
    found = [first]
    for _ in range(0 if jit else PROCESSES - 1):
        other = in_fresh_process((*arguments, 0))
        if other is None:
            return None
        found.append(other)
    peaks = [int(str(one["peak_bytes"])) for one in found]
    weights = int(str(first["peak_bytes"])) - int(str(first["activation_bytes"]))
    peak = round(statistics.median(peaks))
    spread = {
        "processes": len(peaks),
        "lowest_peak_bytes": min(peaks),
        "highest_peak_bytes": max(peaks),
    }
    return {**first, "peak_bytes": peak, "activation_bytes": peak - weights, **spread}


def in_fresh_process(arguments: tuple[object, ...]) -> dict[str, object] | None:
    """Measure in a fresh process; print its error and return `None` if it failed."""
    environment = {
        **os.environ,
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    said = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps(arguments)],
        env=environment,
        capture_output=True,
        text=True,
    )
    if said.returncode:
        last_line = [str(said.returncode), *said.stderr.strip().splitlines()][-1]
        print(f"{arguments}: {last_line}", flush=True)
        return None
    return dict(json.loads(said.stdout.strip().splitlines()[-1]))


def summary(found: list[dict[str, str]]) -> None:
    """Print each method against the plain model, and the errors of the predictions."""
    plain = {(one["model"], one["jit_compile"]): one for one in found if one["method"] == "none"}
    errors = []
    for one in found:
        none = plain.get((one["model"], one["jit_compile"]))
        if none is None or one is none:
            continue
        saved = 1 - float(one["activation_bytes"]) / float(none["activation_bytes"])
        predicted = ""
        if one["predicted_bytes"] and one["jit_compile"] == "False":
            error = float(one["predicted_bytes"]) / float(one["peak_bytes"]) - 1
            errors.append(abs(error))
            predicted = f", predicted peak {error:+.0%}"
        jit = ", jit" if one["jit_compile"] == "True" else ""
        cost = f"activations {-saved:+.0%} at {float(one['time_ratio']):.2f}x"
        print(f"{one['model'] + jit:<20}{one['method']:<12}{cost}{predicted}")
    if errors:
        middle = f"median error {statistics.median(errors):.0%}"
        print(f"predicted peak, not jitted: {middle}, largest {max(errors):.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--models", default="")
    parser.add_argument("--methods", default="")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*json.loads(options.one))))
        return
    if not options.out:
        parser.error("--out must name a CSV file")
    done = rows.known(options.out, ("model", "jit_compile", "method"))
    models = JITTED if options.jit else SIZES
    for name in options.models.split(",") if options.models else models:
        size, batch = SIZES.get(name, (64, 16))
        methods = (*METHODS, *PARTIAL.get((name, options.jit), ()))
        for method in options.methods.split(",") if options.methods else methods:
            if (name, str(options.jit), method) in done:
                continue
            found = row((name, size, batch, options.jit, method), options.jit)
            if found is None:
                continue
            rows.append(options.out, COLUMNS, found)
    summary(rows.read(options.out))


if __name__ == "__main__":
    main()
