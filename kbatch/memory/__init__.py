"""Memory: what a batch size needs, predicted and measured, and the largest that safely trains."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbatch.memory._arguments import FinderArguments
    from kbatch.memory._estimate import Estimate, estimate
    from kbatch.memory._max_batch import MaxBatch
    from kbatch.memory._max_batch_table import Row, Table
    from kbatch.memory._probe import Probe
    from kbatch.memory._throughput import Speed, Throughput

_HOME = {
    "Estimate": "_estimate",
    "FinderArguments": "_arguments",
    "MaxBatch": "_max_batch",
    "Probe": "_probe",
    "Row": "_max_batch_table",
    "Speed": "_throughput",
    "Table": "_max_batch_table",
    "Throughput": "_throughput",
    "estimate": "_estimate",
}

__all__ = [
    "Estimate",
    "FinderArguments",
    "MaxBatch",
    "Probe",
    "Row",
    "Speed",
    "Table",
    "Throughput",
    "estimate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kbatch.memory' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"kbatch.memory.{_HOME[name]}"), name)
    globals()[name] = value
    return value
