"""What was searched: the goal, the data, the model, the space and the trials, in words."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kbatch import json_form
from kbatch.goal import Goal
from kbatch.outcome import STOPPED
from kbatch.records.store import Record
from kbatch.results.duration import spent_words
from kbatch.results.report import devices, versions
from kbatch.results.sentences import goal_words
from kbatch.results.uncertainty import confirmed

Fact = tuple[str, str]


def searched(
    facts: Mapping[str, Any], run: Mapping[str, Any], records: Sequence[Record], goal: Goal
) -> list[Fact]:
    """Return what was searched, as names and words.

    Args:
        facts: The facts of the project.
        run: Notes of the driver on its run; may be empty.
        records: All records.
        goal: The goal of the search.
    """
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
    if not json_form.fits(space, dict[str, Any]):
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
