"""The host memory that a search takes, with trials in this process and with isolated ones.

Usage: python scripts/bench_trial_memory.py [--trials 200] [--ways isolated,here] [--out FILE]

A random search of a small network is made, of whose trials half are compiled by XLA. After every
tenth trial a line is printed: resident bytes and memory maps of this process, and of the worker if
there is one. Linux only.
"""

import argparse
import contextlib
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")

import keras
import keras_tuner
import numpy as np
import rows

import kbatch
from kbatch.training.progress import Watcher

SECONDS = 0.2  # the horizon
EVERY = 10  # trials from one line to the next
COLUMNS = ("way", "trials", "resident_mb", "maps", "worker_mb", "worker_maps", "failed")


def build(hp):
    """A convolutional network whose width the search draws, so that few trials are alike."""
    width = hp.Int("width", 4, 32)
    layers = [
        keras.layers.Conv2D(width, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Conv2D(2 * width, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(1, "sigmoid", dtype="float32"),
    ]
    model = keras.Sequential([keras.Input((16, 16, 3)), *layers])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def pictures(count):
    """Small noisy pictures, half of them brighter."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % 2
    images = random.normal(size=(count, 16, 16, 3)) + 0.3 * labels[:, None, None, None]
    return images.astype("float32"), labels


def sizes(pid):
    """Resident megabytes and memory maps of a process; nothing of one that has ended."""
    with contextlib.suppress(OSError):
        folder = Path("/proc") / str(pid)
        pages = int((folder / "statm").read_text().split()[1])
        maps = len((folder / "maps").read_text().splitlines())
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6), maps
    return "", ""


class Noted(keras.callbacks.Callback):
    """Notes the process that trains, in a file."""

    def __init__(self, path):
        super().__init__()
        self.path = str(path)

    def on_train_begin(self, logs=None):
        """Write the number of the process."""
        Path(self.path).write_text(str(os.getpid()))


class Lines(Watcher):
    """Prints a line after every tenth trial, and writes it to a file if there is one."""

    def __init__(self, way, pid_file, out):
        self.way, self.pid_file, self.out = way, pid_file, out
        self.failed = 0

    def ended(self, record):
        """Count a trial, and tell every tenth."""
        self.failed += record.outcome.failed
        done = record.trial + 1
        if record.purpose == "search" and done % EVERY == 0:
            pid = int(self.pid_file.read_text())
            worker = ("", "") if pid == os.getpid() else sizes(pid)
            cells = (self.way, done, *sizes(os.getpid()), *worker, self.failed)
            row = dict(zip(COLUMNS, cells, strict=True))
            if self.out is None:
                print(*cells, sep=",", flush=True)
            else:
                rows.append(self.out, COLUMNS, row)


def search(way, trials, folder, out):
    """Make one search."""
    space = kbatch.Space(batch_size=(16, 32, 64, 128), jit_compile=(False, True))
    hypermodel = kbatch.HyperModel(
        build, space, seconds_per_trial=SECONDS, isolated=way == "isolated"
    )
    hypermodel.watcher = Lines(way, folder / "pid", out)
    tuner = keras_tuner.RandomSearch(
        hypermodel, kbatch.objective(), trials, seed=1, directory=folder, project_name=way
    )
    x, y = pictures(600)
    tuner.search(
        x[:400],
        y[:400],
        validation_data=(x[400:], y[400:]),
        callbacks=[Noted(folder / "pid")],
    )


def main():
    """Make the searches, and write their lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--ways", default="isolated,here")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for way in options.ways.split(","):
        with tempfile.TemporaryDirectory() as folder:
            search(way, options.trials, Path(folder), options.out)


if __name__ == "__main__":
    main()
