"""Memory: what a batch size needs, predicted and measured, and the largest that safely trains."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbatch.memory._estimate import estimate

__all__ = ["estimate"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kbatch.memory' has no attribute {name!r}")
    value = getattr(importlib.import_module("kbatch.memory._estimate"), name)
    globals()[name] = value
    return value
