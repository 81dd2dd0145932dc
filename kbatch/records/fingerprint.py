"""Fingerprint: what a project was started with, so that a resumed search compares like with like."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kbatch.errors import ProjectChangedError, RecordError
from kbatch.records import atomic_file, disk, kinds

FOLDER, FILE = "kbatch", "project.json"  # the folder is inside KerasTuner's own
KINDS: dict[str, Any] = {  # of the facts that kbatch reads again; all others are only compared
    "goal": dict[str, Any],
    "baseline": dict[str, Any],
    "data": dict[str, dict[str, Any]],
    "epochs": int | None,
    "measured_horizon_seconds": float,
    "table": dict[str, Any],
}
GOAL: dict[str, Any] = {
    "seconds": kinds.Above0,
    "metric": str,
    "direction": str,
    "chance": float,
    "target": float | None,
}
SUM = "checksum"  # a fact that some data have not: `None` on either side compares with nothing


def load(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What the project in `directory` was started with, or `None` if it was not started.

    Raises:
        RecordError: If the file cannot be read, or holds something else.
    """
    path = Path(directory) / FILE
    text = atomic_file.read(path)
    if text is None:
        return None
    do = "Move the folder away, or start in another one"
    try:
        facts = kinds.parsed(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} must be readable JSON", f"{error}", do) from error
    if not isinstance(facts, dict):
        raise RecordError(f"{path} must hold the facts of a project", f"{facts!r:.60}", do)
    for name, value, kind in _known(facts):
        if not kinds.fits(value, kind):
            raise RecordError(
                f"{path} must hold the facts of a project", f"{name}={value!r:.60}", do
            )
    return facts


def _known(facts: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, value and kind of each fact that is read again."""
    for name, kind in KINDS.items():
        if name in facts:
            yield name, facts[name], kind
    if isinstance(facts.get("goal"), dict):
        for name, kind in GOAL.items():
            yield f"goal.{name}", facts["goal"].get(name), kind
    if isinstance(facts.get("data"), dict):
        for part, told in facts["data"].items():
            yield (
                f"data.{part}.examples",
                told.get("examples", 0) if isinstance(told, dict) else 0,
                int,
            )


def save(directory: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
    """Keep what the project was started with; the file appears whole or not at all."""
    path = Path(directory) / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk.refusal(error, path.parent) from error
    atomic_file.write(path, json.dumps(facts, indent=1, sort_keys=True))


def check(directory: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
    """Refuse to go on with other facts than the project was started with.

    Args:
        directory: Folder of the project's records.
        facts: What the search is now run with; names that the project does not know yet are not
            compared.

    Raises:
        ProjectChangedError: If a fact differs; the message says which, from what, to what.
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
        return []  # data without a fixed order have none, though they may have seemed to once
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted(before.keys() | now.keys())
        return [
            text
            for key in names
            for text in _differences(f"{name}.{key}", before.get(key), now.get(key))
        ]
    return [] if before == now else [f"{name} was {before!r} and is now {now!r}"]


def _without_sums(before: Any, now: Any) -> Any:
    """The stored fact, with no checksum where there is none now: the next one would be another."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return before
    return {
        name: None if name == SUM and now.get(name) is None else _without_sums(fact, now.get(name))
        for name, fact in before.items()
    }
