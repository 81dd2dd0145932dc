"""Loading: the records of a project as pandas tables, units in the column names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from kbatch.errors import RecordError
from kbatch.records import fingerprint
from kbatch.records.record import Record
from kbatch.records.store import FILE, read


def folder_of(directory: str | os.PathLike[str]) -> Path:
    """The folder of the records: `directory` itself, or the only one below it that holds records.

    Args:
        directory: A KerasTuner project, a folder that holds one, or the folder of the records.

    Raises:
        RecordError: If there is none, or more than one.
    """
    root = Path(directory)
    found = [path.parent for path in (root / FILE, root / fingerprint.FOLDER / FILE) if path.exists()]
    found = found or sorted(path.parent for path in root.glob(f"*/{fingerprint.FOLDER}/{FILE}"))
    if len(found) != 1:
        received = "no records" if not found else ", ".join(map(str, found))
        raise RecordError(f"{root} must hold the records of one search", received, "Pass the folder of one search (directory/project_name)")
    return found[0]


def load_records(directory: str | os.PathLike[str]) -> list[Record]:
    """All records of a project, in the order they were made."""
    return [line.record for line in read(folder_of(directory) / FILE) if line.record]


def load_goal(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The goal of a project: `seconds`, `metric`, `direction`, `chance`, `target`."""
    facts = fingerprint.load(folder_of(directory)) or {}
    if "goal" not in facts:
        raise RecordError("A project must have a goal", f"none in {folder_of(directory)}", "Let the search finish its baseline first")
    return dict(facts["goal"])


def load(directory: str | os.PathLike[str]) -> pd.DataFrame:
    """The trials of a search and its baseline, one row each.

    Args:
        directory: Folder of the search (`directory/project_name` of its tuner).

    Returns:
        A `pandas.DataFrame` with at least the columns `trial` (-1 for the baseline), `batch_size`, `micro_batch_size`,
        `optimizer`, `learning_rate`, `learning_rate_at_32`, `policy`, `augmentation`, `score`, the metric (such as
        `val_accuracy`), `train_seconds`, `first_step_seconds`, `validation_seconds`, `examples`,
        `examples_per_second`, `peak_bytes`, `ended`, `baseline`; and `hp_…` for the user's own hyperparameters.

    Raises:
        RecordError: If there are no records, or they cannot be read.

    Example:
    ```python
    trials = kbatch.results.load("runs/pets")
    print(trials.sort_values("score", ascending=False)[["recipe", "score", "val_accuracy"]])
    ```
    """
    return rows([record for record in load_records(directory) if record.purpose != "confirmation"], load_goal(directory)["metric"])


def load_confirmations(directory: str | os.PathLike[str]) -> pd.DataFrame:
    """The trainings of `kbatch.confirm`, one row each, with the columns of `load`, `seed` and `test_…`."""
    return rows([record for record in load_records(directory) if record.purpose == "confirmation"], load_goal(directory)["metric"])


def rows(records: Iterable[Record], metric: str = "val_accuracy") -> pd.DataFrame:
    """One row per record."""
    return pd.DataFrame([_row(record, metric) for record in records])


def _row(record: Record, metric: str) -> dict[str, Any]:
    recipe, outcome = record.recipe, record.outcome
    seconds = {f"{part}_seconds": outcome.seconds.get(part) for part in ("build", "first_step", "validation", "checkpoint", "total")}
    ours = {
        "optimizer",
        "learning_rate_sgd",
        "learning_rate_adam",
        "policy",
        "augmentation",
        "jit_compile",
        "recompute",
        "batch_size",
        "warmup_passes",
    }
    return {
        "trial": record.trial,
        "baseline": record.baseline,
        "recipe": str(recipe),
        "batch_size": recipe.batch_size,
        "micro_batch_size": recipe.micro_batch_size or recipe.batch_size,
        "optimizer": recipe.optimizer,
        "learning_rate": outcome.learning_rate,
        "learning_rate_at_32": record.learning_rate_at_32,
        "warmup_updates": recipe.warmup_updates,
        "policy": recipe.policy,
        "augmentation": recipe.augmentation,
        "jit_compile": recipe.jit_compile,
        "recompute": recipe.recompute,
        "score": record.score,
        metric: outcome.value,
        "ended": outcome.ended,
        "train_seconds": outcome.train_seconds,
        "median_update_seconds": outcome.median_update_seconds,
        **seconds,
        "updates": outcome.updates,
        "examples": outcome.examples,
        "examples_per_second": outcome.examples_per_second,
        "input_examples_per_second": outcome.input_examples_per_second,
        "peak_bytes": outcome.peak_bytes,
        "recompute_seconds": outcome.recompute_seconds,
        "seed": record.seed,
        "remarks": "; ".join(outcome.remarks) or outcome.message,
        "device": record.device,
        **{f"hp_{name}": value for name, value in record.values.items() if name not in ours and not name.startswith("tuner/")},
        **{f"test_{name}": value for name, value in record.test.items()},
    }
