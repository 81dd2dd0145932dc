"""Public names of kbatch.memory, each once: lazy_loader and type checkers read them here."""

from ._estimate import Estimate, Speed, SpeedLine, Throughput, estimate
from ._find import FinderArguments
from ._max_batch import MaxBatch, Probe, Row, Table

__all__ = [
    "Estimate",
    "FinderArguments",
    "MaxBatch",
    "Probe",
    "Row",
    "Speed",
    "SpeedLine",
    "Table",
    "Throughput",
    "estimate",
]
