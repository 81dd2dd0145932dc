"""Verdict: whether a published claim holds on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Found: TypeAlias = Literal["holds", "holds in part", "does not hold here", "not measured here"]


@dataclass(frozen=True)
class Verdict:
    """A published claim, and what became of it here.

    Attributes:
        claim: String, the claim in a sentence.
        source: String, who published it.
        found: `"holds"`, `"holds in part"`, `"does not hold here"` or `"not measured here"`.
        evidence: String, the numbers that say so.
    """

    claim: str
    source: str
    found: Found
    evidence: str


def found(cases: Sequence[bool]) -> Found:
    """Return what became of a claim, from the cases in which it held or did not.

    >>> found([True, True]), found([True, False]), found([False]), found([])
    ('holds', 'holds in part', 'does not hold here', 'not measured here')
    """
    if not cases:
        return "not measured here"
    if all(cases):
        return "holds"
    return "holds in part" if any(cases) else "does not hold here"
