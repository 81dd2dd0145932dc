"""Tables of the page: what was searched, the recipes, and advice on them."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbatch import plain_text
from kbatch.advice.evidence import Advice
from kbatch.advice.inquiry import evidence_of
from kbatch.advice.past import ProjectFacts, facts_of
from kbatch.advice.rulebook import advice_on, unchecked
from kbatch.outcome import STOPPED, Goal
from kbatch.records.store import Record
from kbatch.results.claim import Mean
from kbatch.results.duration import spent_words
from kbatch.results.ranking import Rank, headings, table
from kbatch.results.report import devices, versions
from kbatch.results.sentences import goal_words
from kbatch.results.uncertainty import confirmed
from kbatch.results.words import SCORE, score_text

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
    """Return the advice on the best recipe of a search, and on its baseline."""
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


CONFIRMED = "score/s, fresh seeds"
REMARK = "remark"
TEXT = ("recipe", "own hyperparameters", "ended", REMARK)  # columns sorted as words
BASELINE, BEST = "baseline", "best"
Key = float | str


@dataclass(frozen=True)
class Cell:
    """One cell: its text, and the number or word that it is sorted by (`None` comes last)."""

    text: str
    key: Key | None


@dataclass(frozen=True)
class Row:
    """One recipe: its cells, and `"baseline"`, `"best"` or an empty string."""

    role: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class RecipeTable:
    """The table of recipes.

    Attributes:
        headings: Tuple of strings.
        rows: Tuple of `Row`, the baseline first, then by score.
    """

    headings: tuple[str, ...]
    rows: tuple[Row, ...]

    def is_text(self, heading: str) -> bool:
        """Tell whether a column is sorted as words."""
        return heading in TEXT


def recipe_table(
    ranks: Sequence[Rank], records: Sequence[Record], goal: Goal, best: Record | None
) -> RecipeTable:
    """Return the ranking as a table, with the scores of the confirmation if there is one."""
    names = [name or REMARK for name in headings(ranks, goal.metric)]
    means = {
        (group[0].trial, str(group[0].recipe)): Mean.of([record.score for record in group])
        for group in confirmed(records).values()
    }
    rows = [
        _row(rank, dict(zip(names, texts, strict=True)), goal, means, best)
        for rank, texts in zip(ranks, table(ranks), strict=True)
    ]
    if means:
        names.insert(names.index(SCORE) + 1, CONFIRMED)
    return RecipeTable(tuple(names), tuple(rows))


def _row(
    rank: Rank,
    texts: Mapping[str, str],
    goal: Goal,
    means: Mapping[tuple[int, str], Mean],
    best: Record | None,
) -> Row:
    record, outcome = rank.record, rank.record.outcome
    numbers: dict[str, float | None] = {
        "trial": float(record.trial),
        SCORE: record.score,
        goal.metric: outcome.value,
        "examples/s": outcome.examples_per_second,
        "peak MB": outcome.peak_bytes,
    }
    cells = []
    for name, text in texts.items():
        key: Key | None = text if name in TEXT else _finite(numbers.get(name))
        cells.append(Cell(text, key))
        if name == SCORE and means:
            cells.append(_confirmed_cell(means.get((record.trial, str(record.recipe)))))
    role = BASELINE if record.baseline else BEST * (record is best)
    return Row(role, tuple(cells))


def _confirmed_cell(mean: Mean | None) -> Cell:
    if mean is None:
        return Cell("-", None)
    error = "" if math.isnan(mean.error) else f" ± {score_text(mean.error, mean.mean)}"
    text = f"{score_text(mean.mean)}{error} (n = {len(mean.values)})"
    return Cell(text, _finite(mean.mean))


def _finite(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else float(number)


Fact = tuple[str, str]


def searched(
    facts: Mapping[str, Any], run: Mapping[str, Any], records: Sequence[Record], goal: Goal
) -> list[Fact]:
    """Return what was searched, as names and words."""
    told = [(name, str(run[name])) for name in ("data", "model") if name in run]
    return [
        *told,
        ("goal", goal_words(goal)),
        ("examples", _examples(facts)),
        *_space(facts.get("space")),
        ("trainings", _trainings(records)),
        ("device", devices(records)),
    ]


def commands(run: Mapping[str, Any], root: Path) -> list[Fact]:
    """Return the commands that made the results and that go on from them."""
    own = [("made by", str(run["command"]))] if "command" in run else []
    folder = shlex.quote(str(root))
    return [
        *own,
        ("written by", f"kbatch report {folder}"),
        ("advice", f"kbatch advise {folder}"),
        ("in Python", f"kbatch.best_recipe({str(root)!r})"),
    ]


def library_versions(records: Sequence[Record]) -> list[str]:
    """Return the versions that trained, each combination once."""
    return versions(records).split("; ")


def _examples(facts: Mapping[str, Any]) -> str:
    data = facts.get("data") or {}
    counts = [(name, (data.get(name) or {}).get("examples")) for name in ("training", "validation")]
    known = [f"{count:,} for {name}" for name, count in counts if isinstance(count, int)]
    return ", ".join(known) or "unknown"


def _space(space: Any) -> Iterator[Fact]:
    """The axes that had a choice."""
    if not plain_text.fits_json(space, dict[str, Any]):
        return
    for name, values in space.items():
        words = _choice(values)
        if words:
            yield name.replace("_", " "), words
        elif name == "learning_rate" and isinstance(values, dict):
            for optimizer, rates in values.items():
                yield f"learning rate of {optimizer}, at 32", _choice(rates, " … ") or str(rates)


def _choice(values: Any, between: str = ", ") -> str:
    """Several values in words; empty if there is no choice."""
    if not isinstance(values, list) or len(values) < 2:
        return ""
    return between.join(f"{each:g}" if isinstance(each, float) else str(each) for each in values)


def _trainings(records: Sequence[Record]) -> str:
    """How many trainings there were, how they ended, and how long they took."""
    purposes = Counter(record.purpose for record in records)
    recipes = len(confirmed(records))
    trials = purposes["search"]
    words = ["1 trial" if trials == 1 else f"{trials} trials"]
    words.append(f"{purposes['baseline']} of the baseline")
    if recipes:
        words.append(f"{purposes['confirmation']} to confirm {recipes} recipes")
    failed = sum(record.outcome.failed for record in records)
    stopped = sum(record.outcome.ended == STOPPED for record in records)
    if stopped:
        words.append(f"{stopped} stopped at a rung")
    if failed:
        words.append(f"{failed} failed")
    return f"{', '.join(words)}; {spent_words(records)} in all"
