"""Recompute: gradient checkpointing for any Functional or Sequential model, placed optimally and exact to the bit."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbatch.recompute.applying import applied, apply, remove
    from kbatch.recompute.measuring import best_plan, measure
    from kbatch.recompute.planned import Plan
    from kbatch.recompute.planning import front, plan
    from kbatch.recompute.verifying import Report, verify

_HOME = {
    "Plan": "planned",
    "Report": "verifying",
    "applied": "applying",
    "apply": "applying",
    "best_plan": "measuring",
    "front": "planning",
    "measure": "measuring",
    "plan": "planning",
    "remove": "applying",
    "verify": "verifying",
}

__all__ = ["Plan", "Report", "applied", "apply", "best_plan", "front", "measure", "plan", "remove", "verify"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kbatch.recompute' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"kbatch.recompute.{_HOME[name]}"), name)
    globals()[name] = value
    return value
