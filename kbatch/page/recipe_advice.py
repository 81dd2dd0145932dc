"""The advice in the page: what speaks against the best recipe and the baseline, by the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbatch.advice.advice import Advice
from kbatch.advice.inquiry import evidence_of
from kbatch.advice.project_facts import ProjectFacts, facts_of
from kbatch.advice.rulebook import advice_on, unchecked
from kbatch.records.store import Record

# The page may be made on another machine than the search: without a name, no rule asks this one.
UNKNOWN_DEVICE = "unknown"


@dataclass(frozen=True)
class RecipeAdvice:
    """What a colleague would say of one recipe.

    Attributes:
        name: String, such as `"best recipe (trial 3)"`.
        recipe: String, the recipe in words.
        found: Tuple of `Advice`.
        unchecked: Tuple of topics that the results do not suffice to judge.
    """

    name: str
    recipe: str
    found: tuple[Advice, ...]
    unchecked: tuple[str, ...]


def recipe_advice(
    source: Any, records: Sequence[Record], best: Record | None
) -> list[RecipeAdvice]:
    """Return the advice on the best recipe of a search, and on its baseline.

    Args:
        source: The folder of the search.
        records: Its records.
        best: Record of the best recipe.
    """
    baseline = next((record for record in records if record.baseline), None)
    named = []
    if best is not None:
        named.append((f"Best recipe (trial {best.trial})", best))
    if baseline is not None and (best is None or best.recipe != baseline.recipe):
        named.append(("Baseline", baseline))
    facts = _of_its_own_machine(facts_of(source))
    return [_of(name, record, facts) for name, record in named]


def _of(name: str, record: Record, facts: ProjectFacts) -> RecipeAdvice:
    evidence = evidence_of(record.recipe, results=facts)
    found, left = advice_on(evidence), unchecked(evidence)
    return RecipeAdvice(name, str(record.recipe), tuple(found), tuple(left))


def _of_its_own_machine(facts: ProjectFacts) -> ProjectFacts:
    trainings = tuple(
        dataclasses.replace(each, device=each.device or UNKNOWN_DEVICE)
        for each in facts.results.trainings
    )
    results = dataclasses.replace(facts.results, trainings=trainings)
    return dataclasses.replace(facts, results=results)
