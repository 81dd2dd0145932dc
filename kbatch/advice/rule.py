"""Rule: one thing that a colleague looks at in a recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from kbatch.advice.advice import Advice
from kbatch.advice.evidence import Evidence

# What a rule may need to know, in words, by the name that `Rule.needs` gives it.
KNOWN: dict[str, Callable[[Evidence], bool]] = {
    "results": lambda evidence: evidence.results is not None,
    "model": lambda evidence: evidence.model is not None,
    "largest_batch": lambda evidence: evidence.largest_batch is not None,
    "updates": lambda evidence: evidence.updates is not None,
    "model and updates": lambda evidence: None not in (evidence.model, evidence.updates),
    "data": lambda evidence: evidence.shared is not None,
    "space": lambda evidence: bool(evidence.space),
    "rate": lambda evidence: evidence.learning_rate is not None,
    "fine-tuning": lambda evidence: evidence.is_fine_tuning is not None,
    "own results": lambda evidence: bool(evidence.own_trainings),
}


@dataclass(frozen=True)
class Rule:
    """One thing that a colleague looks at in a recipe.

    Attributes:
        name: String, stable name.
        topic: String, what it looks for, as a noun phrase.
        find: Function from `Evidence` to `Advice`, or to `None` where there is nothing to say.
        needs: Tuple of names of `KNOWN`, one of which must be known to judge; empty for a rule that
            the recipe alone suffices for.
        concerns: Function that tells whether the topic can arise for a recipe at all.
    """

    name: str
    topic: str
    find: Callable[[Evidence], Advice | None]
    needs: tuple[str, ...] = ()
    concerns: Callable[[Evidence], bool] = lambda evidence: True

    def advice(self, evidence: Evidence) -> Advice | None:
        """Return the advice under the rule's name; `None` where there is nothing to say."""
        found = self.find(evidence)
        return None if found is None else dataclasses.replace(found, rule=self.name)

    def is_checked(self, evidence: Evidence) -> bool:
        """Tell whether the evidence suffices to judge."""
        if not self.concerns(evidence) or not self.needs:
            return True
        return any(KNOWN[need](evidence) for need in self.needs)
