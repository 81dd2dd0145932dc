"""For users' own tests: a clock without waiting, and recorded trainings without training."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbatch.testing._fake_time import FakeTime
    from kbatch.testing._replay import Replay

_HOME = {"FakeTime": "_fake_time", "Replay": "_replay"}

__all__ = ["FakeTime", "Replay"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kbatch.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"kbatch.testing.{_HOME[name]}"), name)
