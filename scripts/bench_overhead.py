"""What kbatch costs per update: the same model, data and batch in kbatch's training and in a plain `model.fit`, in interleaved pairs.

Usage: python scripts/bench_overhead.py [--pairs 12] [--seconds 3] [--out scripts/results/overhead.csv]

Each pair trains both ways, in turn first and second, and compares the wall-clock seconds per update after the first, input included. Validation,
which plain `fit` is not asked for, is off the clock in both. Prints the mean ratio and the upper end of its 95 % interval.
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


def plain(found, batch_size, seconds):
    """Seconds per update of a plain fit on the same arrays."""
    model = cnn(found.train[0].shape[1])
    model.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy", metrics=["accuracy"], jit_compile=False)
    times = Times(seconds)
    model.fit(*found.train, batch_size=batch_size, epochs=10_000, callbacks=[times], verbose=0)
    return (times.last - times.first) / (times.updates - 1)


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
    plain(found, options.batch_size, 1.0), ours(found, options.batch_size, 1.0)
    rows = []
    for pair in range(options.pairs):
        order = (plain, ours) if pair % 2 else (ours, plain)
        measured = {way.__name__: way(found, options.batch_size, options.seconds) for way in order}
        rows.append({"pair": pair, **{f"{name}_ms": 1e3 * value for name, value in measured.items()}, "ratio": measured["ours"] / measured["plain"]})
        print(f"pair {pair}: kbatch {1e3 * measured['ours']:.2f} ms, plain {1e3 * measured['plain']:.2f} ms, ratio {rows[-1]['ratio']:.3f}", flush=True)
    logs = [math.log(row["ratio"]) for row in rows]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    print(f"ratio {math.exp(mean):.3f}, upper 95 % bound {math.exp(mean + 1.8 * error):.3f} (one-sided, {len(rows)} pairs)")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with open(options.out, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
