"""Public names of kbatch.testing, each once: lazy_loader and type checkers read them here."""

from ._replay import FakeTime, Replay

__all__ = [
    "FakeTime",
    "Replay",
]
