"""The project of a search: its trainings, each kept as a record and made at most once."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbatch.device import meter
from kbatch.errors import ProjectChangedError, RecordError
from kbatch.outcome import SCORED, Outcome
from kbatch.recipe import Recipe
from kbatch.records import atomic_file, fingerprint
from kbatch.records.lock import Lock
from kbatch.records.record import Record, drawn_of, key_of
from kbatch.records.store import FILE, Store
from kbatch.runtime import ctrl_c

CRASHES = 2  # after so many starts without an end, a training is said to kill its process


def versions() -> dict[str, str]:
    """Return the versions that a measurement depends on."""
    found = {"python": platform.python_version()}
    for name in ("tensorflow", "keras", "keras-tuner", "kbatch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


@dataclass(frozen=True)
class Job:
    """One training to make: enough to tell it from others and to write its record.

    Attributes:
        purpose: `"search"`, `"baseline"` or `"confirmation"`.
        trial: Integer, number of the KerasTuner trial; -1 for the baseline.
        seed: Integer, seed of weights, order of the data and dropout.
        recipe: `Recipe` to follow.
        values: Values of all hyperparameters of the trial.
        learning_rate_at_32: Float, the learning rate carried back to batch 32, or `None`.
        remarks: Sentences on the recipe itself.
    """

    purpose: str
    trial: int
    seed: int
    recipe: Recipe
    values: Mapping[str, Any] = field(default_factory=dict)
    learning_rate_at_32: float | None = None
    remarks: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The key of the record; equal for equal trainings."""
        return key_of(self.values, self.recipe, self.seed, self.purpose)

    def record(
        self,
        outcome: Outcome,
        score: float,
        test: Mapping[str, float] | None = None,
        checkpoint: str = "",
    ) -> Record:
        """Return the record of this training.

        Args:
            outcome: Measured `Outcome`.
            score: Float, its score.
            test: Metrics of the kept weights on test data. Optional.
            checkpoint: Path of the kept weights, relative to the project; empty if none were kept.
        """
        return Record(
            key=self.key,
            purpose=self.purpose,
            trial=self.trial,
            seed=self.seed,
            recipe=self.recipe,
            outcome=outcome,
            score=score,
            values=dict(self.values),
            learning_rate_at_32=self.learning_rate_at_32,
            test=dict(test or {}),
            checkpoint=checkpoint,
            versions=versions(),
            device=meter.device_words(),
            finished_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )


class Project:
    """The records of one search, in the folder `kbatch` of its KerasTuner project.

    Args:
        directory: Folder of the KerasTuner project.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.folder = self.directory / fingerprint.FOLDER
        self.store = Store(self.folder)

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

    def largest_passed(self) -> int:
        """Return the largest micro-batch that has trained in this project; 0 if none has."""
        passed = [record for record in self.store.records() if record.outcome.ended in SCORED]
        return max((record.recipe.examples_per_pass for record in passed), default=0)

    def known(self, job: Job) -> Record | None:
        """Return the record of a training that ended, or `None`.

        A trial is told by its drawn values, since another version of kbatch may make another recipe
        of them.
        """
        finished = self.store.finished(job.key)
        if finished or job.purpose != "search":
            return finished
        drawn = {
            record.drawn: record for record in self.store.records() if record.purpose == "search"
        }
        return drawn.get(drawn_of(job.values, job.seed))

    def crashed(self, job: Job) -> Record | None:
        """Return the record of a training whose process died twice; `None` for any other.

        It is not begun again.
        """
        if self.store.unfinished_starts(job.key) < CRASHES:
            return None
        return job.record(
            Outcome(
                ended="crashed",
                message=f"the process ended {CRASHES} times while this was training",
            ),
            0.0,
        )

    @contextlib.contextmanager
    def training(self, job: Job) -> Iterator[None]:
        """Note that a training begins. If an error or the user stops it, it begins again."""
        self.store.start(job.key)
        try:
            with ctrl_c.terminable():
                yield
        except BaseException:  # Ctrl-C and SystemExit too, which a handler of signals may raise
            with ctrl_c.undisturbed():
                # The user stopped it, or sees the error: it is no crash.
                self.store.interrupt(job.key)
            raise

    def end(self, record: Record) -> Record:
        """Keep the record of a training that ended."""
        self.store.end(record)
        return record


def _is_completed(file: Path) -> bool:
    """Whether KerasTuner's file of a trial says that the trial was completed."""
    with contextlib.suppress(RecordError, ValueError, RecursionError, AttributeError):
        return json.loads(atomic_file.read(file) or b"null").get("status") == "COMPLETED"  # type: ignore[no-any-return]
    return False
