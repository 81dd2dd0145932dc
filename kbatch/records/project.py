"""Project: the folder of a search, its facts, and each training at most once."""

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
from typing import Any, TypedDict

import kbatch
from kbatch import plain_text
from kbatch.errors import ProjectChangedError, RecordError
from kbatch.outcome import Direction, Outcome
from kbatch.plain_text import Count, Name, Number, Seconds, SecondsAbove0, Text, Whole
from kbatch.recipe import Recipe
from kbatch.records import files
from kbatch.records.files import Lock
from kbatch.records.store import BASELINE_TRIAL, RECORDS_FILE, Record, Store, drawn_of, key_of
from kbatch.runtime import signals


def versions() -> dict[str, str]:
    """Return the versions that a measurement depends on."""
    found = {"python": platform.python_version(), "kbatch": kbatch.__version__}
    for name in ("tensorflow", "keras", "keras-tuner"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def name_of(purpose: str, trial: int, seed: int) -> str:
    """Return the name of a training, for the files of callbacks and the runs of TensorBoard."""
    if purpose == "search":
        return str(trial)
    if purpose == "baseline":
        return "baseline"
    recipe = "baseline" if trial == BASELINE_TRIAL else f"trial{trial}"
    return f"{purpose}_{recipe}_seed{seed}"


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
        repeats: Integer, number of the trial whose recipe is trained again; `None` for any other.
    """

    purpose: str
    trial: int
    seed: int
    recipe: Recipe
    values: Mapping[str, Any] = field(default_factory=dict)
    learning_rate_at_32: float | None = None
    remarks: tuple[str, ...] = ()
    repeats: int | None = None

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
        device: str = "",
    ) -> Record:
        """Return the record of this training."""
        from kbatch.runtime import device_memory

        return Record(
            key=self.key,
            purpose=self.purpose,
            trial=self.trial,
            seed=self.seed,
            recipe=self.recipe,
            outcome=outcome,
            score=score,
            values=dict(self.values),
            repeats=self.repeats,
            learning_rate_at_32=self.learning_rate_at_32,
            test=dict(test or {}),
            checkpoint=checkpoint,
            versions=versions(),
            device=device or device_memory.device_words(),
            finished_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )


CRASHES = 2  # after so many starts without an end, a training is said to kill its process


class AtMostOnce:
    """Keeps the rule that each training of a search is made at most once."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def known(self, job: Job) -> Record | None:
        """Return the record of a training that ended, or `None`.

        A trial is told by its drawn values, since another version of kbatch may make another recipe
        of them.
        """
        finished = self._store.finished(job.key)
        if finished or job.purpose != "search":
            return finished
        drawn = {
            record.drawn: record for record in self._store.records() if record.purpose == "search"
        }
        return drawn.get(drawn_of(job.values, job.seed))

    def crashed(self, job: Job) -> Record | None:
        """Return the record of a training whose process died twice; `None` for any other.

        It is not begun again.
        """
        if self._store.unfinished_starts(job.key) < CRASHES:
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
        self._store.start(job.key)
        try:
            with signals.terminable():
                yield
        except BaseException:  # Ctrl-C and SystemExit too, which a handler of signals may raise
            with signals.undisturbed():
                # The user stopped it, or sees the error: it is no crash.
                self._store.interrupt(job.key)
            raise

    @contextlib.contextmanager
    def isolated(self, job: Job) -> Iterator[None]:
        """Note that a training begins in a worker: that this process ends is no crash of it."""
        self._store.start(job.key)
        self._store.interrupt(job.key)
        with signals.terminable():
            yield

    def disturbed(self, job: Job) -> None:
        """Note that a training that ended is made again, and that its start was no crash."""
        self._store.interrupt(job.key)

    def died(self, job: Job) -> None:
        """Note that the worker of a training died: a start that has no end."""
        self._store.start(job.key)

    def end(self, record: Record) -> Record:
        """Keep the record of a training that ended."""
        self._store.end(record)
        return record


FOLDER, FACTS_FILE = "kbatch", "project.json"  # the folder is inside KerasTuner's own
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
