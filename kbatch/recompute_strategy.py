"""The strategy of recompute that a recipe names: which segments of a model are recomputed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kbatch.number_text import number, shortest

SEARCHED = ("none", "minimal", "sqrt", "stages")
BUDGET, SEGMENTS = "budget", "segments"
WORDS = (
    f"{', '.join(SEARCHED)}, {SEGMENTS}:4 (so many equal ones) or {BUDGET}:0.5 (at most that share "
    "of the kept bytes)"
)


@dataclass(frozen=True)
class Strategy:
    """One value of the axis `recompute`.

    Attributes:
        name: `"none"`, `"minimal"`, `"sqrt"`, `"stages"`, `"segments"` or `"budget"`.
        kept_share: Float between 0 and 1, share of the plain model's kept bytes that may be kept.
            `None` for all strategies but `"budget"`.
        count: Integer from 2, the number of equal segments. `None` for all strategies but
            `"segments"`.
    """

    name: str
    kept_share: float | None = None
    count: int | None = None

    def __str__(self) -> str:
        """Return the text that `parse` reads, one for all spellings of a strategy."""
        if self.kept_share is not None:
            return f"{self.name}:{shortest(self.kept_share)}"
        return self.name if self.count is None else f"{self.name}:{self.count}"

    @classmethod
    def parse(cls, text: object) -> Strategy | None:
        """Read a strategy from a text such as `"budget:0.5"`; `None` for any other text.

        Example:
        >>> Strategy.parse("budget:0.5")
        Strategy(name='budget', kept_share=0.5, count=None)
        >>> Strategy.parse("budget") is None
        True
        """
        if not isinstance(text, str):
            return None
        name, _, share = text.partition(":")
        if name in SEARCHED:
            return None if share or text.endswith(":") else cls(name)
        if name == SEGMENTS:
            plain = re.fullmatch(r"[1-9][0-9]{0,3}", share)
            return cls(name, count=int(share)) if plain and int(share) > 1 else None
        kept = number(share)
        known = name == BUDGET and kept is not None and 0 < kept < 1
        return cls(name, kept) if known else None
