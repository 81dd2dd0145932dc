"""Project: the folder of a search, its facts and its records."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from kbatch.errors import ProjectChangedError, RecordError
from kbatch.records import atomic_file, fingerprint, links
from kbatch.records.lock import Lock
from kbatch.records.store import FILE, Store
from kbatch.training.at_most_once import AtMostOnce


class Project:
    """The records of one search, in the folder `kbatch` of its KerasTuner project.

    Args:
        directory: Folder of the KerasTuner project.

    Raises:
        RecordError: If the records cannot be read, or the folder holds links.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        links.check_below(self.directory)
        self.folder = self.directory / fingerprint.FOLDER
        self.store = Store(self.folder)
        self.trainings = AtMostOnce(self.store)

    def hold(self) -> Lock:
        """Lock the project, so that no other process trains in it until the lock is released.

        Raises:
            RecordError: If another process is training in it; the message says which.
        """
        lock = Lock(self.folder)
        if lock.fresh:
            self.store.read_again()
        return lock

    def check_complete(self) -> None:
        """Refuse a project that has trials of KerasTuner and no records.

        Raises:
            RecordError: If the records are gone.
        """
        if self.store.records():
            return
        completed = sum(map(_is_completed, self.directory.glob("trial_*/trial.json")))
        if completed:
            raise RecordError(
                f"The records of a search must be in {self.folder}",
                f"none, though KerasTuner's {completed} trials are there",
                f"Bring {FILE} back, or start in another folder",
            )

    def facts(self) -> dict[str, Any]:
        """Return the facts that the project was begun with; empty for a new one."""
        return fingerprint.load(self.folder) or {}

    def agree(self, facts: dict[str, Any]) -> None:
        """Refuse facts other than the project's, and keep new ones.

        Raises:
            ProjectChangedError: If one differs.
        """
        try:
            fingerprint.check(self.folder, facts)
        except ProjectChangedError:
            if self.store.records():
                raise
            # Nothing was measured yet: a corrected argument begins a new search.
            fingerprint.save(self.folder, facts)
        stored = self.facts()
        if not facts.keys() <= stored.keys():
            fingerprint.save(self.folder, {**facts, **stored})

    def note(self, facts: dict[str, Any]) -> None:
        """Keep facts that may differ from the project's, in their place."""
        fingerprint.save(self.folder, {**self.facts(), **facts})

    def largest_passed(self) -> int:
        """Return the largest micro-batch that has trained in this project; 0 if none has."""
        passed = [record for record in self.store.records() if not record.outcome.failed]
        return max((record.recipe.examples_per_pass for record in passed), default=0)


def _is_completed(file: Path) -> bool:
    """Whether KerasTuner's file of a trial says that the trial was completed."""
    with contextlib.suppress(RecordError, ValueError, RecursionError, AttributeError):
        state = json.loads(atomic_file.read(file) or b"null")
        return bool(state.get("status") == "COMPLETED")
    return False
