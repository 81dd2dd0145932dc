"""Public names of kbatch.recompute, each once: lazy_loader and type checkers read them here."""

from ._apply import applied, apply, remove
from ._measure import Verification, best_plan, measure, verify
from ._plan import Plan, PlannedSegment
from ._planner import front, plan

__all__ = [
    "Plan",
    "PlannedSegment",
    "Verification",
    "applied",
    "apply",
    "best_plan",
    "front",
    "measure",
    "plan",
    "remove",
    "verify",
]
