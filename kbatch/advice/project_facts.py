"""Project facts: what the folder of a search tells of its data, its space and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kbatch.advice.past_results import Results, results_of
from kbatch.memory._max_batch import Table
from kbatch.recipe_fields import whole_number
from kbatch.records import project
from kbatch.results.loading import (
    folder_of,
    load,
    load_checks,
    load_confirmations,
    load_own_optimizer,
)


@dataclass(frozen=True)
class ProjectFacts:
    """What the folder of a search tells.

    Attributes:
        results: `Results`, confirmations among them.
        training_examples: Integer, or `None`.
        shared: Tuple of the validation examples that are training examples too, and of those that
            were looked at, or `None`.
        limits: The largest batches: an integer, a `Table`, or `None`.
        space: Mapping, the space as the project holds it.
        own_optimizer: String, the class of the model's own optimizer in lower case.
    """

    results: Results
    training_examples: int | None = None
    shared: tuple[int, int] | None = None
    limits: int | Table | None = None
    space: Mapping[str, Any] = field(default_factory=dict)
    own_optimizer: str = ""


def facts_of(source: Any) -> ProjectFacts:
    """Read results: the tuner of a search, its folder, or the table of `kbatch.results.load`.

    A table tells nothing but its trainings. Facts that were read before are returned.

    Raises:
        RecordError: If there are no records, or they cannot be read.
    """
    if isinstance(source, ProjectFacts):
        return source
    if hasattr(source, "iterrows"):
        return ProjectFacts(results_of([source]))
    results = results_of([load(source), load_confirmations(source)])
    facts = project.load_facts(folder_of(source)) or {}
    table, validation = facts.get("table"), load_checks(source).get("validation", {})
    counts = [whole_number(validation.get(name), 0) for name in ("shared", "looked_at")]
    return ProjectFacts(
        results,
        (facts.get("data", {}).get("training") or {}).get("examples"),
        None if None in counts else (counts[0] or 0, counts[1] or 0),
        facts.get("max_batch") if table is None else Table.from_dict(table),
        facts.get("space") or {},
        load_own_optimizer(source).lower(),
    )
