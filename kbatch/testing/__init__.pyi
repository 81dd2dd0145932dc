"""Public names of kbatch.testing, each once: lazy_loader and type checkers read them here."""

from ._fake_time import FakeTime
from ._replay import Replay

__all__ = [
    "FakeTime",
    "Replay",
]
