"""`Advice`: what to do about a recipe, why, and where that is known from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """One piece of advice on a recipe; `str` gives its sentence.

    `kbatch.advise` returns a list of them.

    Attributes:
        text: String, what to do: one sentence with the numbers of this case.
        reason: String, why: one or two sentences.
        source: String, the paper, or the trials or measurement that it comes from.
        rule: String, the name of the rule that gave it, such as `"no_warmup"`. It is the same in
            every version.

    Example:
    >>> advice = Advice("Warm up.", "The first updates are steep.", "Goyal et al. 2017")
    >>> print(advice)
    Warm up.
    """

    text: str
    reason: str
    source: str
    rule: str = ""

    def __str__(self) -> str:
        return self.text
