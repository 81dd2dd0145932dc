"""What kbatch costs per update: the same model, data and batch in kbatch's training and in a plain `model.fit`, in interleaved pairs.

Usage: python scripts/bench_overhead.py [--pairs 12] [--seconds 3] [--out scripts/results/overhead.csv]

Plain `fit` is timed twice: on the very stream that kbatch trains on, and on the arrays, as most users call it. Each round trains all three ways, in
rotating order, and compares the wall-clock seconds per update after the first, input included. Validation, which plain `fit` is not asked for, is off
the clock. Prints the geometric mean of the ratios and the upper end of its 95 % interval.
"""

import argparse
import csv
import math
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

import kbatch
from kbatch.case_study.models import cnn
from kbatch.case_study.sources import pictures
from kbatch.data.streams import training_source


class Times(keras.callbacks.Callback):
    """Notes the first and the last end of a batch; Keras may call it from a thread of its own."""

    async_safe = True

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.first, self.last, self.updates = seconds, None, 0.0, 0

    def on_train_batch_end(self, batch, logs=None):
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.updates += 1
        if self.last - self.first > self.seconds:
            self.model.stop_training = True


def _timed_fit(found, seconds, data, **arguments):
    model = cnn(found.train[0].shape[1])
    model.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy", metrics=["accuracy"], jit_compile=False)
    times = Times(seconds)
    model.fit(*data, epochs=10_000, callbacks=[times], verbose=0, **arguments)
    return (times.last - times.first) / (times.updates - 1)


def arrays(found, batch_size, seconds):
    """Seconds per update of a plain fit on the arrays, as most users call it."""
    return _timed_fit(found, seconds, found.train, batch_size=batch_size)


def stream(found, batch_size, seconds):
    """Seconds per update of a plain fit on the very stream that kbatch trains on."""
    batches = training_source(*found.train).stream(batch_size, seed=0)
    updates = -(-len(found.train[0]) // batch_size)
    return _timed_fit(found, seconds, (batches,), steps_per_epoch=updates, shuffle=False)


def ours(found, batch_size, seconds):
    """Seconds per update on kbatch's clock."""

    def build():
        return cnn(found.train[0].shape[1])

    recipe = kbatch.Recipe(batch_size=batch_size)
    _, outcome = kbatch.train(recipe, build, *found.train, found.validation, seconds=seconds, loss="binary_crossentropy", metrics=["accuracy"])
    return outcome.train_seconds / outcome.updates


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = pictures("drawn", options.image_size)
    ways = [arrays, stream, ours]
    for way in ways:
        way(found, options.batch_size, 1.0)
    rows = []
    for pair in range(options.pairs):
        ways = [*ways[1:], ways[0]]
        measured = {f"{way.__name__}_ms": 1e3 * way(found, options.batch_size, options.seconds) for way in ways}
        rows.append({"pair": pair, **dict(sorted(measured.items()))})
        print(", ".join(f"{name} {value:.2f}" for name, value in rows[-1].items()), flush=True)
    for peer in ("stream", "arrays"):
        logs = [math.log(row["ours_ms"] / row[f"{peer}_ms"]) for row in rows]
        mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
        bound = math.exp(mean + 1.8 * error)  # one-sided, t with 11 degrees of freedom
        print(f"kbatch / plain fit on {peer}: {math.exp(mean):.3f}, upper 95 % bound {bound:.3f} ({len(rows)} interleaved pairs)")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with open(options.out, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
