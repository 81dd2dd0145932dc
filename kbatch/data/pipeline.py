"""Pipeline: how TensorFlow runs the datasets of trainings and evaluations."""

from __future__ import annotations

import os

import tensorflow as tf


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the dataset without the thread that tunes it, unless its own options ask for one.

    Who drops an iterator waits for that thread. Up to a third of the iterators were seen to wait
    for as long again as they had lived: `CancellationManager` wakes the thread before it says that
    all is cancelled, and the thread may sleep on, for a minute at most. Steps that leave their
    parallel calls to TensorFlow get one a core instead (`scripts/bench_pipelines.py`).
    """
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    options.autotune.initial_parallelism = os.cpu_count() or 1
    return dataset.with_options(options)
