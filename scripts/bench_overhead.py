"""The overhead of kbatch per update, against a plain `model.fit` of the same model and data.

Usage: python scripts/bench_overhead.py [--rounds 12] [--seconds 3] [--batch-sizes 32,256,2048,4096]
[--parts pipeline,light,pictures,checks,searches] [--out FILE]

There are five parts, the first two at every batch size. Within a round their ways take turns:

- pipeline: kbatch's stream of 200,000 x 20 floats, against Keras' own adapter, both without
  training, in CPU seconds per batch;
- light: a small MLP on these floats, by a plain fit on the arrays and a plain fit on kbatch's
  stream (CPU seconds per update), and by kbatch's training (wall clock);
- pictures: the case study's CNN on drawn pictures in the same ways, at batch 32 only;
- checks: the seconds of all checks before a training (`kbatch.checks`), of a recipe with passes, on
  the MLP, the case study's CNN, and MobileNetV2 at 96 pixels;
- searches: two-second trials of a small network on scikit-learn's digits, with traces shared, with
  a trace for each, and with the portfolio: seconds by the wall clock of the whole search, and what
  they went to.

CPU seconds are those of all threads, and first updates are left out. Plain fits do not validate,
and kbatch's clock leaves validation out. The script prints for each ratio the geometric mean and
the upper end of its 95 % interval.
"""

import argparse
import csv
import itertools
import math
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from sklearn.datasets import load_digits

import kbatch
from kbatch.checks.catalogue import made
from kbatch.checks.check import Subject
from kbatch.data.case_study import pictures
from kbatch.data.streams import training_source
from kbatch.data.validation import prepare
from kbatch.models.case_study import cnn
from kbatch.models.maker import ModelMaker
from kbatch.records.project import Project

ROWS, COLUMNS = 200_000, 20
PIPELINE_ROWS = 400_000  # read in each round


class Times(keras.callbacks.Callback):
    """Notes wall-clock and CPU seconds at the first and the last end of a batch."""

    # Keras may call it from a thread of its own.

    async_safe = True

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.first, self.last, self.updates = seconds, None, None, 0

    def on_train_batch_end(self, batch, logs=None):
        self.last = (time.perf_counter(), time.process_time())
        self.first = self.first or self.last
        self.updates += 1
        if self.last[0] - self.first[0] > self.seconds:
            self.model.stop_training = True

    def per_update(self):
        """Return milliseconds per update after the first, of the wall clock and of the CPU."""
        wall, cpu = (
            1e3 * (last - first) / (self.updates - 1)
            for first, last in zip(self.first, self.last, strict=True)
        )
        return {"wall_ms": wall, "cpu_ms": cpu}


def plain(build, seconds, data, **arguments):
    """Train by a plain fit, and return its times."""
    model = build()
    model.compile(
        keras.optimizers.Adam(1e-3), "binary_crossentropy", metrics=["accuracy"], jit_compile=False
    )
    times = Times(seconds)
    model.fit(*data, epochs=10_000, callbacks=[times], verbose=0, **arguments)
    return times.per_update()


def arrays(build, train, validation, batch_size, seconds):
    """Train by a plain fit on the arrays, as most users do."""
    return plain(build, seconds, train, batch_size=batch_size)


def stream(build, train, validation, batch_size, seconds):
    """Train by a plain fit on the stream that kbatch trains on."""
    batches = training_source(*train).stream(batch_size, seed=0)
    return plain(
        build, seconds, (batches,), steps_per_epoch=-(-len(train[0]) // batch_size), shuffle=False
    )


def ours(build, train, validation, batch_size, seconds):
    """Train by kbatch, timed by its own clock."""
    recipe = kbatch.Recipe(batch_size=batch_size)
    _, outcome = kbatch.train(
        recipe,
        build,
        *train,
        validation,
        seconds=seconds,
        loss="binary_crossentropy",
        metrics=["accuracy"],
    )
    return {"wall_ms": 1e3 * outcome.train_seconds / outcome.updates}


def read(iterator, batches):
    """Return CPU milliseconds per batch."""
    began = time.process_time()
    for _ in range(batches):
        next(iterator)
    return 1e3 * (time.process_time() - began) / batches


def mlp():
    return keras.Sequential(
        [
            keras.Input((COLUMNS,)),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dense(1, "sigmoid", dtype="float32"),
        ]
    )


def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, COLUMNS)).astype("float32")
    return x, (x[:, 0] > 0).astype("int32")


def pipeline_rows(batch_sizes, rounds):
    x, y = table()
    for batch_size in batch_sizes:
        pipelines = {
            "kbatch": training_source(x, y).stream(batch_size, seed=0),
            "keras": ArrayDataAdapter(x, y, batch_size=batch_size, shuffle=True)
            .get_tf_dataset()
            .repeat(),
        }
        iterators = {name: iter(dataset) for name, dataset in pipelines.items()}
        for iterator in iterators.values():
            read(iterator, 3)
        for number in range(rounds):
            order = sorted(iterators, reverse=bool(number % 2))
            found = {
                f"{name}_cpu_ms": read(iterators[name], PIPELINE_ROWS // batch_size)
                for name in order
            }
            yield {"part": "pipeline", "batch_size": batch_size, "round": number, **found}


def fit_rows(part, build, train, validation, batch_sizes, rounds, seconds):
    for batch_size in batch_sizes:
        ways = [arrays, stream, ours]
        for way in ways:
            way(build, train, validation, batch_size, 0.5)
        for number in range(rounds):
            ways = [*ways[1:], ways[0]]
            found = {}
            for way in ways:
                for unit, value in way(build, train, validation, batch_size, seconds).items():
                    found[f"{way.__name__}_{unit}"] = value
            yield {"part": part, "batch_size": batch_size, "round": number, **found}


def checked_models(image_size):
    """Give models by name, each with examples and labels."""
    x, y = table()
    yield "mlp", mlp, (x, y)
    found = pictures("drawn", image_size)
    yield "cnn", lambda: cnn(image_size), found.train
    large = np.random.default_rng(0).normal(size=(256, 96, 96, 3)).astype("float32")
    yield "mobilenet_v2", mobilenet, (large, np.arange(256) % 2)


def mobilenet():
    base = keras.applications.MobileNetV2((96, 96, 3), include_top=False, weights=None)
    pooled = keras.layers.GlobalAveragePooling2D()(base.output)
    return keras.Model(base.input, keras.layers.Dense(1, "sigmoid")(pooled))


def check_rows(image_size, rounds):
    for name, build, (x, y) in checked_models(image_size):
        spec = kbatch.ModelSpec(build, loss="binary_crossentropy", metrics=["accuracy"])
        cut = len(y) * 3 // 4
        for number in range(rounds):
            data = prepare(x[:cut], y[:cut], validation_data=(x[cut:], y[cut:]))
            recipe = kbatch.Recipe(32, micro_batch_size=8)
            began = time.perf_counter()
            found = made(Subject.of_training(ModelMaker.of(spec), data, recipe))
            seconds = time.perf_counter() - began
            each = {f"{one.check.name}_s": one.seconds for one in found}
            yield {"part": "checks", "model": name, "round": number, "all_s": seconds, **each}


def digits_build():
    hidden = [keras.layers.Dense(128, "relu"), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


# Whether traces are shared, and what is learned from. A portfolio's trials are often stopped early,
# and each costs as much setting up: without it the trials are those of earlier versions.
SEARCHES = {
    "shared": (True, ()),
    "own": (False, ()),
    "shared, with the portfolio": (True, None),
}


def search_rows(rounds, trials=12):
    """Rows of one search each, with traces shared and not, in turns."""
    x, y = load_digits(return_X_y=True)
    data = (x[:1400] / 16, y[:1400])
    for number, traces in itertools.product(range(rounds), SEARCHES):
        reuse, learned = SEARCHES[traces]
        hypermodel = kbatch.HyperModel(digits_build, seconds_per_trial=2, seed=number)
        hypermodel.reuse_traces = reuse
        with tempfile.TemporaryDirectory() as folder:
            tuner = kbatch.Tuner(
                hypermodel,
                max_trials=trials,
                directory=folder,
                project_name="digits",
                learn_from=learned,
            )
            began = time.perf_counter()
            tuner.search(*data, validation_data=(x[1400:] / 16, y[1400:]), verbose=0)
            wall = time.perf_counter() - began
            records = Project(tuner.project_dir).store.records()
        trained = sum(record.outcome.train_seconds for record in records)
        parts = {
            f"{part}_s": sum(record.outcome.seconds.get(part, 0.0) for record in records)
            for part in ("first_step", "validation")
        }
        ratio = {"wall_per_training_second": wall / trained}
        sizes = {"round": number, "trainings": len(records), "train_s": trained, "wall_s": wall}
        yield {
            "part": "searches",
            "traces": traces,
            **sizes,
            **parts,
            **ratio,
        }


def report(rows):
    """Print one line for each part, batch size and ratio."""
    pairs = [
        ("kbatch_cpu_ms", "keras_cpu_ms"),
        ("stream_cpu_ms", "arrays_cpu_ms"),
        ("ours_wall_ms", "stream_wall_ms"),
        ("ours_wall_ms", "arrays_wall_ms"),
    ]
    for name in dict.fromkeys(row["model"] for row in rows if row["part"] == "checks"):
        all_seconds = [row["all_s"] for row in rows if row.get("model") == name]
        print(f"checks of {name}: {statistics.median(all_seconds):.2f} s in the median")
    for traces in dict.fromkeys(row["traces"] for row in rows if row["part"] == "searches"):
        ratios = [row["wall_per_training_second"] for row in rows if row.get("traces") == traces]
        told = f"{statistics.median(ratios):.2f} seconds by the wall clock for one of training"
        print(f"a search with traces {traces}: {told} in the median")
    rows = [row for row in rows if row["part"] not in ("checks", "searches")]
    for part, batch_size in dict.fromkeys((row["part"], row["batch_size"]) for row in rows):
        chosen = [row for row in rows if (row["part"], row["batch_size"]) == (part, batch_size)]
        for mine, peer in pairs:
            logs = [math.log(row[mine] / row[peer]) for row in chosen if mine in row]
            if len(logs) > 1:
                mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
                bound = math.exp(mean + 1.8 * error)  # one-sided, t with 11 degrees of freedom
                ratio = f"{mine} / {peer} {math.exp(mean):.3f}, upper 95 % bound {bound:.3f}"
                print(f"{part} at {batch_size}: {ratio} ({len(logs)} rounds)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--batch-sizes", default="32,256,2048,4096")
    parser.add_argument("--parts", default="pipeline,light,pictures,checks")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sizes = [int(size) for size in options.batch_sizes.split(",")]
    parts, rows = options.parts.split(","), []

    def take(measured):
        for row in measured:
            rows.append(
                {
                    name: round(value, 5) if isinstance(value, float) else value
                    for name, value in row.items()
                }
            )
            print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)

    if "pipeline" in parts:
        take(pipeline_rows(sizes, options.rounds))
    if "light" in parts:
        x, y = table()
        small = (x[:32], y[:32])
        take(fit_rows("light", mlp, (x, y), small, sizes, options.rounds, options.seconds))
    if "searches" in parts:
        take(search_rows(min(options.rounds, 3)))
    if "checks" in parts:
        take(check_rows(options.image_size, min(options.rounds, 3)))
    if "pictures" in parts:
        found = pictures("drawn", options.image_size)
        take(
            fit_rows(
                "pictures",
                lambda: cnn(options.image_size),
                found.train,
                found.validation,
                [32],
                options.rounds,
                options.seconds,
            )
        )
    report(rows)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with open(options.out, "w", newline="") as file:
            names: dict[str, None] = {}
            for row in rows:
                names.update(dict.fromkeys(row))
            writer = csv.DictWriter(file, fieldnames=list(names))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
