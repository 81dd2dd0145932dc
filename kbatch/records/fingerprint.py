"""Fingerprint: what a project was started with, so that a resumed search compares like with like."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kbatch.errors import ProjectChangedError, RecordError
from kbatch.records import whole

FOLDER, FILE = "kbatch", "project.json"  # the folder is inside KerasTuner's own
SUM = "checksum"  # a fact that some data have not: `None` on either side compares with nothing


def load(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What the project in `directory` was started with, or `None` if it was not started."""
    path = Path(directory) / FILE
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise RecordError(f"{path} must be readable JSON", f"{error}", "Move the folder away, or start in another one") from error


def save(directory: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
    """Keep what the project was started with; the file appears whole or not at all."""
    path = Path(directory) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    whole.write(path, json.dumps(facts, indent=1, sort_keys=True))


def check(directory: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
    """Refuse to go on with other facts than the project was started with.

    Args:
        directory: Folder of the project's records.
        facts: What the search is now run with; names that the project does not know yet are not compared.

    Raises:
        ProjectChangedError: If a fact differs; the message says which, from what, to what.
    """
    stored = load(directory) or {}
    now = json.loads(json.dumps(facts))
    changed = [difference for name in sorted(now) if name in stored for difference in _differences(name, stored[name], now[name])]
    if changed:
        raise ProjectChangedError(
            f"A search must be resumed as it was started ({Path(directory)})", "; ".join(changed), "Restore these, or start in another folder"
        )
    known = {name: _without_sums(stored[name], now[name]) if name in now else stored[name] for name in stored}
    if known != stored:
        save(directory, known)


def _differences(name: str, before: Any, now: Any) -> list[str]:
    if name.endswith(f".{SUM}") and None in (before, now):
        return []  # data without a fixed order have none, though they may have seemed to once
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted(before.keys() | now.keys())
        return [text for key in names for text in _differences(f"{name}.{key}", before.get(key), now.get(key))]
    return [] if before == now else [f"{name} was {before!r} and is now {now!r}"]


def _without_sums(before: Any, now: Any) -> Any:
    """The stored fact, with no checksum where there is none now: the next one would be another."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return before
    return {name: None if name == SUM and now.get(name) is None else _without_sums(fact, now.get(name)) for name, fact in before.items()}
