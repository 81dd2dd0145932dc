"""Trials per second of several workers, each with a simulated device.

Usage: python scripts/bench_executor.py [--workers 1,4] [--seconds 20] [--trials 4]
[--executor local] [--out FILE]

A device is simulated: a layer sleeps for each batch, as the processor does while a GPU works.
So the workers share the cores of this machine for all but that: input, tracing, validation,
weights. A row holds the trials per second once every worker has ended its first trial, and how many
times those of one worker that is.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import rows
import tensorflow as tf

import kbatch
from kbatch.training.progress import Watcher

COLUMNS = ("executor", "workers", "seconds_per_trial", "trials", "trials_per_second", "times_one")
BATCH_SECONDS = 0.05  # of the simulated device


@keras.saving.register_keras_serializable()
class Device(keras.layers.Layer):
    """Takes its time for each batch, without the processor."""

    def call(self, x):
        y = tf.py_function(_slept, [x], x.dtype)
        y.set_shape(x.shape)
        return y


def _slept(x):
    time.sleep(BATCH_SECONDS)
    return x


class Ends(Watcher):
    """Notes when each trial ended."""

    def __init__(self):
        self.seconds = []

    def ended(self, record):
        if record.purpose == "search":
            self.seconds.append(time.monotonic())


def build(hp):
    layers = [Device(), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.Input((12,)), *layers])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def trials_per_second(kind, workers, seconds, trials, folder):
    """Return the trials per second of a search by so many workers."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 12)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    executor = {"local": kbatch.LocalExecutor, "ray": kbatch.RayExecutor}[kind](workers)
    space = kbatch.Space(batch_size=(16, 32, 64), optimizer="adam", jit_compile=False)
    tuner = kbatch.Tuner(
        build, space, seconds_per_trial=seconds, executor=executor, directory=folder
    )
    tuner.hypermodel.watcher = Ends()
    data = {"validation_data": (x[:64], y[:64])}
    # no trial is stopped at a rung, so that all take the same seconds
    with mock.patch("kbatch.search.tuner_border.question", return_value=None):
        arguments = {**data, "verbose": 0}
        tuner.search(x, y, max_trials=trials * workers, **arguments)
    ends = tuner.hypermodel.watcher.seconds
    return (len(ends) - workers) / (ends[-1] - ends[workers - 1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="1,4")
    parser.add_argument("--executor", default="local", choices=("local", "ray"))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--trials", type=int, default=4, help="of each worker")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    one = None
    for workers in map(int, options.workers.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            rate = trials_per_second(
                options.executor, workers, options.seconds, options.trials, folder
            )
        one = rate if one is None else one
        values = (
            *(options.executor, workers, options.seconds, options.trials * workers),
            *(round(rate, 4), round(rate / one, 2)),
        )
        line = dict(zip(COLUMNS, values, strict=True))
        rows.tell(options.out, COLUMNS, line)


if __name__ == "__main__":
    main()
