"""The records of a study as a table, a row for each cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from kbatch.outcome import SCORED
from kbatch.records.store import Record
from kbatch.studies.cell import Cell

TRAIN = "train_"  # before the metrics on training data in a record's `test`


def frame_of(pairs: Sequence[tuple[Cell, Record]]) -> pd.DataFrame:
    """Return a row for each cell: its recipe, its length, and what was measured.

    The columns are `group`, `batch_size`, `micro_batch_size`, `optimizer`, `unit`, `length`,
    `seed`, `data`, `model`, `memory_limit` and `environment` (both of a process of its own),
    `ended`, `val_accuracy` (held), `train_accuracy`, `test_accuracy`, `last_accuracy` (the last one
    measured on validation data), `best_accuracy`, `best_share` (the share of the training after
    which the best accuracy was measured), `train_seconds`, `step_seconds`, `examples_per_second`,
    `peak_bytes`, `gpu_percent`, `updates` and `recipe`.

    Args:
        pairs: Each cell with its record.
    """
    return pd.DataFrame([_row(cell, record) for cell, record in pairs])


def _row(cell: Cell, record: Record) -> dict[str, Any]:
    outcome, recipe = record.outcome, record.recipe
    scored = outcome.ended in SCORED
    best_share, best = _best(outcome.curve)
    return {
        "group": cell.group,
        "batch_size": recipe.batch_size,
        "micro_batch_size": recipe.examples_per_pass,
        "optimizer": recipe.optimizer,
        "unit": cell.length.unit,
        "length": cell.length.amount,
        "seed": cell.seed,
        "data": cell.data,
        "model": cell.model,
        "memory_limit": cell.memory_limit,
        "environment": " ".join(f"{name}={value}" for name, value in cell.environment.items()),
        "ended": outcome.ended,
        "val_accuracy": outcome.value if scored else None,
        "train_accuracy": record.test.get(f"{TRAIN}accuracy"),
        "test_accuracy": record.test.get("accuracy"),
        "last_accuracy": outcome.curve[-1][1] if scored and outcome.curve else None,
        "best_accuracy": best if scored else None,
        "best_share": best_share if scored else None,
        "train_seconds": outcome.train_seconds if scored else None,
        "step_seconds": outcome.median_update_seconds,
        "examples_per_second": outcome.examples_per_second if scored else None,
        "peak_bytes": outcome.peak_bytes,
        "gpu_percent": outcome.utilisation.get("mean_gpu_percent"),
        "updates": outcome.updates,
        "recipe": str(recipe),
    }


def _best(curve: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """The share of the training at the best measurement, and its value."""
    if not curve:
        return None, None
    seconds, value = max(curve, key=lambda point: point[1])
    return seconds / curve[-1][0] if curve[-1][0] else None, value
