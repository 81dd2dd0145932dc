"""At most once: what a training is told by, and that none is made twice."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import kbatch
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.records.store import BASELINE_TRIAL, Record, Store, drawn_of, key_of
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
    """One training to make: enough to tell it from others and to write its record."""

    purpose: str  # `"search"`, `"baseline"` or `"confirmation"`
    trial: int  # number of the KerasTuner trial; -1 for the baseline
    seed: int  # seed of weights, order of the data and dropout
    recipe: Recipe
    # values of all hyperparameters of the trial
    values: Mapping[str, Any] = field(default_factory=dict)
    # the learning rate carried back to batch 32, or `None`
    learning_rate_at_32: float | None = None
    remarks: tuple[str, ...] = ()  # sentences on the recipe itself
    # number of the trial whose recipe is trained again; `None` for any other
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
