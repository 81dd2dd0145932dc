"""Project: the folder of a search, its facts, and when it is refused to go on with others."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from kbatch import plain_text
from kbatch.errors import ProjectChangedError, RecordError
from kbatch.outcome import Direction
from kbatch.plain_text import Count, Name, Number, Seconds, SecondsAbove0, Text, Whole
from kbatch.records import files
from kbatch.records.at_most_once import AtMostOnce
from kbatch.records.files import Lock
from kbatch.records.store import RECORDS_FILE, Store

FOLDER, FACTS_FILE = "kbatch", "project.json"  # the folder is inside KerasTuner's own
TUNER, OWN = "tuner", "kbatch"  # the fact that a search is kbatch's own, and its value
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
    tuner: Name


def load_facts(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Read the facts of the project in `directory`; `None` if the project was not started."""
    path = Path(directory) / FACTS_FILE
    text = files.read(path)
    if text is None:
        return None
    do = "Move the folder away, or start in another one"
    no_json = f"{path} must be readable JSON"
    facts: dict[str, Any] = plain_text.parse_json(text, lambda said: RecordError(no_json, said, do))
    must = f"{path} must hold the facts of a project"
    plain_text.read_json(Facts, facts, lambda said: RecordError(must, said, do))
    return facts


def save_facts(directory: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
    """Write the facts of a project; the file appears whole or not at all."""
    path = Path(directory) / FACTS_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.refusal(error, path.parent) from error
    files.write(path, json.dumps(facts, indent=1, sort_keys=True))


def check_facts(directory: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
    """Refuse facts that differ from those that the project was started with."""
    stored = load_facts(directory) or {}
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
        save_facts(directory, known)


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


class Project:
    """The records of one search, in the folder `kbatch` of its KerasTuner project."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        files.check_no_links(self.directory)
        self.folder = self.directory / FOLDER
        self.store = Store(self.folder)
        self.trainings = AtMostOnce(self.store)

    def hold(self) -> Lock:
        """Lock the project, so that no other process trains in it until the lock is released."""
        lock = Lock(self.folder)
        if lock.fresh:
            self.store.read_again()
        return lock

    def check_complete(self) -> None:
        """Refuse a project that has trials of KerasTuner and no records."""
        if self.store.records():
            return
        completed = sum(map(_is_completed, self.directory.glob("trial_*/trial.json")))
        if completed:
            raise RecordError(
                f"The records of a search must be in {self.folder}",
                f"none, though KerasTuner's {completed} trials are there",
                f"Bring {RECORDS_FILE} back, or start in another folder",
            )

    def facts(self) -> dict[str, Any]:
        """Return the facts that the project was begun with; empty for a new one."""
        return load_facts(self.folder) or {}

    def agree(self, facts: dict[str, Any]) -> None:
        """Refuse facts other than the project's, and keep new ones."""
        try:
            check_facts(self.folder, facts)
        except ProjectChangedError:
            if self.store.records():
                raise
            # Nothing was measured yet: a corrected argument begins a new search.
            save_facts(self.folder, facts)
        stored = self.facts()
        if not facts.keys() <= stored.keys():
            save_facts(self.folder, {**facts, **stored})

    def note(self, facts: dict[str, Any]) -> None:
        """Keep facts that may differ from the project's, in their place."""
        save_facts(self.folder, {**self.facts(), **facts})

    def largest_passed(self) -> int:
        """Return the largest micro-batch that has trained in this project; 0 if none has."""
        passed = [record for record in self.store.records() if not record.outcome.failed]
        return max((record.recipe.examples_per_pass for record in passed), default=0)


def _is_completed(file: Path) -> bool:
    """Whether KerasTuner's file of a trial says that the trial was completed."""
    with contextlib.suppress(RecordError, ValueError, RecursionError, AttributeError):
        state = json.loads(files.read(file) or b"null")
        return bool(state.get("status") == "COMPLETED")
    return False
