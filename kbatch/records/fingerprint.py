"""The facts that a project was started with.

A search that is resumed must have the same facts, so that its trials compare with the earlier ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from kbatch import json_form
from kbatch.errors import ProjectChangedError, RecordError
from kbatch.json_form import Count, Name, Number, Seconds, SecondsAbove0, Text, Whole
from kbatch.records import atomic_file, disk
from kbatch.scoring import Direction

FOLDER, FILE = "kbatch", "project.json"  # the folder is inside KerasTuner's own
SUM = "checksum"  # data without a fixed order have none: `None` on either side is not compared


class GoalFacts(TypedDict):
    """The goal of a search, as project.json holds it."""

    seconds: SecondsAbove0
    metric: Name
    direction: Direction
    chance: Number


class OptionalGoalFacts(GoalFacts, total=False):
    """The goal of a search, with the target that it may have."""

    target: Number | None


class DataFacts(TypedDict, total=False):
    """Facts of training or validation data."""

    examples: Count


class CallbackFacts(TypedDict):
    """The class and the settings of one of the user's callbacks."""

    name: Name
    settings: dict[str, Any]


class GivenFacts(TypedDict, total=False):
    """Which arguments a search was given, and those that a project can keep."""

    names: list[Name]
    batched: bool
    validation_split: Number
    validation_batch_size: Count


class CheckFacts(TypedDict, total=False):
    """What a check of the model and the data found, with the facts of its own."""

    sentence: Text
    lowest: dict[Name, Any]
    claimable: bool


class Facts(TypedDict, total=False):
    """The facts of a project that kbatch uses; all others are only compared."""

    goal: OptionalGoalFacts
    baseline: dict[str, Any]
    data: dict[str, DataFacts]
    epochs: Count | None
    measured_horizon_seconds: Seconds
    looks: list[Count]
    dropped: list[Whole]
    callbacks: list[CallbackFacts]
    given: GivenFacts
    values: dict[str, Any]
    idle: list[Name]
    table: dict[str, Any] | None
    signature: dict[str, Any]
    space: dict[str, Any] | None
    checks: dict[Name, CheckFacts]


def load(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Read the facts of the project in `directory`; `None` if the project was not started.

    Raises:
        RecordError: If the file cannot be read, or does not hold facts.
    """
    path = Path(directory) / FILE
    text = atomic_file.read(path)
    if text is None:
        return None
    do = "Move the folder away, or start in another one"
    no_json = f"{path} must be readable JSON"
    facts: dict[str, Any] = json_form.parse(text, lambda said: RecordError(no_json, said, do))
    must = f"{path} must hold the facts of a project"
    json_form.read(Facts, facts, lambda said: RecordError(must, said, do))
    return facts


def save(directory: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
    """Write the facts of a project; the file appears whole or not at all."""
    path = Path(directory) / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk.refusal(error, path.parent) from error
    atomic_file.write(path, json.dumps(facts, indent=1, sort_keys=True))


def check(directory: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
    """Refuse facts that differ from those that the project was started with.

    Args:
        directory: Path of the folder of the project's records.
        facts: Dict, facts of the search as it is run now. Names that the project does not have yet
            are not compared.

    Raises:
        ProjectChangedError: If a fact differs; the message names it and both of its values. Of data
            whose checksum differs it names the data only.
    """
    stored = load(directory) or {}
    now = json.loads(json.dumps(facts))
    changed = [
        difference
        for name in sorted(now)
        if name in stored
        for difference in _differences(name, stored[name], now[name])
    ]
    if changed:
        raise ProjectChangedError(
            f"A search must be resumed as it was started ({Path(directory)})",
            "; ".join(changed),
            "Restore these, or start in another folder",
        )
    known = {
        name: _without_sums(stored[name], now[name]) if name in now else stored[name]
        for name in stored
    }
    if known != stored:
        save(directory, known)


def _differences(name: str, before: Any, now: Any) -> list[str]:
    if name.endswith(f".{SUM}") and None in (before, now):
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted(before.keys() | now.keys())
        return [
            text
            for key in names
            for text in _differences(f"{name}.{key}", before.get(key), now.get(key))
        ]
    if before == now:
        return []
    if name.endswith(f".{SUM}") and isinstance(before, int) and isinstance(now, int):
        return [f"values or order of {name.removesuffix(f'.{SUM}')} are not those of the start"]
    return [f"{name} was {before!r} and is now {now!r}"]


def _without_sums(before: Any, now: Any) -> Any:
    """Return the stored fact without the checksums that the data no longer have."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return before
    return {
        name: None if name == SUM and now.get(name) is None else _without_sums(fact, now.get(name))
        for name, fact in before.items()
    }
