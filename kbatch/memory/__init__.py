"""Memory: what a batch size needs, predicted and measured, and the largest that safely trains."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbatch.memory._estimate import Estimate, Speed, Throughput, estimate
    from kbatch.memory._find import FinderArguments
    from kbatch.memory._max_batch import MaxBatch, Row, Table
    from kbatch.memory._probe import Probe

_HOME = {
    "Estimate": "_estimate",
    "FinderArguments": "_find",
    "MaxBatch": "_max_batch",
    "Probe": "_probe",
    "Row": "_max_batch",
    "Speed": "_estimate",
    "Table": "_max_batch",
    "Throughput": "_estimate",
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
