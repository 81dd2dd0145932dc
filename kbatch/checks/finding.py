"""Checks and findings: an assumption of kbatch's, and what was measured of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbatch.checks.subject import Subject
from kbatch.errors import KbatchError


@dataclass(frozen=True)
class Finding:
    """What a check measured.

    Attributes:
        holds: Boolean, whether the assumption holds.
        sentence: String, what the user is told; empty if there is nothing to tell.
        claimable: Boolean, whether a confirmation may claim a gain in spite of it.
        facts: Mapping, what the check measured, as JSON can hold it; kept with the project.
    """

    holds: bool
    sentence: str = ""
    claimable: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """An assumption of kbatch's, with the function that measures it on the user's own things.

    Attributes:
        name: String, one or two words.
        assumes: String, what must hold, one sentence.
        otherwise: String, what kbatch does where it does not hold, one sentence.
        look: Function of a `Subject` that returns a `Finding`, or `None` where the assumption does
            not concern it. It raises a `KbatchError` to refuse.
    """

    name: str
    assumes: str
    otherwise: str
    look: Callable[[Subject], Finding | None]


@dataclass(frozen=True)
class Found:
    """A check that was made: its finding or its refusal; neither where it does not concern."""

    check: Check
    finding: Finding | None = None
    refusal: KbatchError | None = None
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """`"holds"`, `"does not hold"`, `"refused"` or `"does not concern"`."""
        if self.refusal is not None:
            return "refused"
        if self.finding is None:
            return "does not concern"
        return "holds" if self.finding.holds else "does not hold"

    @property
    def sentence(self) -> str:
        """What the user is told, or why it is refused; empty if there is nothing to tell."""
        if self.refusal is not None:
            return str(self.refusal)
        return "" if self.finding is None else self.finding.sentence
