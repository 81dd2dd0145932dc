"""Recompute: gradient checkpointing for Functional and Sequential models, exact to the bit."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbatch.recompute._apply import applied, apply, remove
    from kbatch.recompute._measure import Report, best_plan, measure, verify
    from kbatch.recompute._plan import Plan, PlannedSegment
    from kbatch.recompute._planner import front, plan

_HOME = {
    "Plan": "_plan",
    "PlannedSegment": "_plan",
    "Report": "_measure",
    "applied": "_apply",
    "apply": "_apply",
    "best_plan": "_measure",
    "front": "_planner",
    "measure": "_measure",
    "plan": "_planner",
    "remove": "_apply",
    "verify": "_measure",
}

__all__ = [
    "Plan",
    "PlannedSegment",
    "Report",
    "applied",
    "apply",
    "best_plan",
    "front",
    "measure",
    "plan",
    "remove",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kbatch.recompute' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"kbatch.recompute.{_HOME[name]}"), name)
    globals()[name] = value
    return value
