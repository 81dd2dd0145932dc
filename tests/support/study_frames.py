"""Rows of studies with known answers."""

import pandas as pd

from kbatch.studies.cell import CellResults, Sample, Setting


def rows(accuracy, unit="epochs", group="adam", seeds=(0, 1, 2), **more):
    """A row for each batch size and seed; the seeds differ by 0.001."""
    found = []
    for size, value in accuracy.items():
        for seed in seeds:
            found.append(
                {
                    "group": group,
                    "batch_size": size,
                    "unit": unit,
                    "length": 5.0,
                    "seed": seed,
                    "model": "cnn",
                    "memory_limit": None,
                    "environment": "",
                    "micro_batch_size": size,
                    "ended": "horizon",
                    "val_accuracy": value + 0.001 * seed,
                    "train_accuracy": value + 0.1,
                    "test_accuracy": value,
                    "best_accuracy": value,
                    "best_share": 0.5,
                    "train_seconds": 10.0,
                    "step_seconds": 0.01,
                    "peak_bytes": 10**6,
                    "gpu_percent": None,
                    "updates": 100,
                    **more,
                }
            )
    return pd.DataFrame(found)


def joined(*frames):
    return pd.concat(frames, ignore_index=True)


def measured(frame, quick=False, pictures=100_000, memory_limit=None):
    """A frame of a study of so many pictures to train, to validate and to test."""
    setting = Setting(image_size=64, epochs=5, seeds=3, quick=quick, memory_limit=memory_limit)
    return CellResults(frame, setting, Sample("pets", 2, pictures, pictures, pictures))
