"""Trials that a search wastes where most batch sizes do not fit into memory, and its own seconds.

Usage: python scripts/bench_wasted.py [--tuners random,bayesian,kbatch] [--trials 30] [--seconds 2]
[--seeds 3] [--out FILE]

The processor's allocator gets a hard limit of memory, so that larger batches really run out. A
trial is wasted if it ran out of memory, or if it was answered with the record of an equal one.
`known` says whether the search was given the table of `kbatch.max_batches`. `own_seconds` are
those that the tuner's oracle took to propose its trials and to hear how they ended, all together;
`share` is their share of the training seconds.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("TF_CPU_BFC_MEM_LIMIT_IN_MB", "64")

import keras
import keras_tuner
import numpy as np
import rows

import kbatch
from kbatch.results.loading import load_records

COLUMNS = (
    *("tuner", "known", "seed", "trials", "out_of_memory", "duplicates", "wasted"),
    *("own_seconds", "share"),
)
SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
KINDS = {
    "random": keras_tuner.RandomSearch,
    "bayesian": keras_tuner.BayesianOptimization,
    "kbatch": kbatch.Tuner,
}


def build(hp):
    hidden = [keras.layers.Dense(512, "relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def examples():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(33280, 64)).astype("float32")
    return x, (x[:, 0] + x[:, 1] ** 2 > 1).astype("int32")


class OwnSeconds:
    """Counts the seconds of an oracle's methods that a tuner calls."""

    def __init__(self, oracle):
        self.seconds = 0.0
        for name in ("create_trial", "update_trial", "end_trial"):
            setattr(oracle, name, self._timed(getattr(oracle, name)))

    def _timed(self, method):
        def timed(*args, **kwargs):
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def wasted(kind, table, seed, trials, seconds, folder):
    """Return the row of one search."""
    x, y = examples()
    space = kbatch.Space(batch_size=SIZES)
    own = {"seconds_per_trial": seconds, "max_batch": table, "max_accumulation_steps": 1}
    hypermodel = kbatch.HyperModel(build, space, **own)
    ending = {}
    if kind == "kbatch":
        tuner = kbatch.Tuner(hypermodel, directory=folder, tuner_seed=seed)
        ending["max_trials"] = trials
    else:
        given = {"max_trials": trials, "directory": folder, "seed": seed + 1}
        tuner = KINDS[kind](hypermodel, kbatch.objective(), **given)
    spent = OwnSeconds(tuner.oracle)
    data = {"validation_data": (x[32768:], y[32768:]), "verbose": 0}
    tuner.search(x[:32768], y[:32768], **data, **ending)
    records = [r for r in load_records(tuner.project_dir) if r.purpose == "search"]
    failed = sum(record.outcome.ended == "out_of_memory" for record in records)
    duplicates = len(tuner.oracle.trials) - len(records)
    train_seconds = sum(record.outcome.train_seconds or 0.0 for record in records)
    known = "no" if table is None else "yes"
    counts = (len(tuner.oracle.trials), failed, duplicates, failed + duplicates)
    shares = (round(spent.seconds, 2), round(spent.seconds / max(train_seconds, 1e-9), 4))
    return dict(zip(COLUMNS, (kind, known, seed, *counts, *shares), strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tuners", default="random,bayesian,kbatch")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    x, y = examples()
    limit = f"{os.environ['TF_CPU_BFC_MEM_LIMIT_IN_MB']}MiB"
    table = kbatch.max_batches(build, x, y, kbatch.Space(batch_size=SIZES), limit)
    print(table, flush=True)
    for known in (None, table):
        for kind in options.tuners.split(","):
            for seed in range(options.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    line = wasted(kind, known, seed, options.trials, options.seconds, folder)
                rows.tell(options.out, COLUMNS, line)


if __name__ == "__main__":
    main()
