"""Verdict: whether a published claim holds on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Found: TypeAlias = Literal[
    "holds", "holds in part", "does not hold here", "not decided here", "not measured here"
]
Case: TypeAlias = Literal["yes", "no", "undecided", "missing"]


@dataclass(frozen=True)
class Finding:
    """What became of a claim in one case, such as for one optimizer.

    Attributes:
        case: `"yes"`, `"no"`, `"undecided"` (a tie, or within noise) or `"missing"` (a cell that
            the claim needs has no value).
        evidence: String, the numbers that say so.
    """

    case: Case
    evidence: str

    def of(self, name: str) -> Finding:
        """Return the same finding with a name before its numbers."""
        return Finding(self.case, f"{name}: {self.evidence}")


@dataclass(frozen=True)
class Verdict:
    """A published claim, and what became of it here.

    Attributes:
        claim: String, the claim in a sentence.
        source: String, who published it.
        found: `"holds"`, `"holds in part"`, `"does not hold here"`, `"not decided here"` or
            `"not measured here"`.
        evidence: String, the numbers that say so.
    """

    claim: str
    source: str
    found: Found
    evidence: str

    @classmethod
    def by(cls, claim: str, source: str, findings: Sequence[Finding]) -> Verdict:
        """Return the verdict that follows from the findings in all cases."""
        evidence = "; ".join(finding.evidence for finding in findings) or "no cells"
        return cls(claim, source, found([finding.case for finding in findings]), evidence)

    def unclaimed(self) -> Verdict:
        """Return the verdict of a quick study, which has numbers but claims nothing."""
        evidence = f"a quick study claims nothing. {self.evidence}"
        return dataclasses.replace(self, found="not decided here", evidence=evidence)


def found(cases: Sequence[Case]) -> Found:
    """Return what became of a claim, from the cases in which it held or did not.

    >>> found(["yes", "yes"]), found(["yes", "no"]), found(["no"])
    ('holds', 'holds in part', 'does not hold here')
    >>> found(["yes", "undecided"]), found(["yes", "missing"]), found([])
    ('not decided here', 'not measured here', 'not measured here')
    """
    if not cases or "missing" in cases:
        return "not measured here"
    if {"yes", "no"} <= set(cases):
        return "holds in part"
    if "undecided" in cases:
        return "not decided here"
    return "holds" if "yes" in cases else "does not hold here"
