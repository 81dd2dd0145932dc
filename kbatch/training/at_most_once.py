"""At most once: a training that ended is never made again, one that was stopped is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kbatch.outcome import Outcome
from kbatch.records.record import Record, drawn_of
from kbatch.records.store import Store
from kbatch.runtime import signals
from kbatch.training.job import Job

CRASHES = 2  # after so many starts without an end, a training is said to kill its process


class AtMostOnce:
    """Keeps the rule that each training of a search is made at most once.

    Args:
        store: `Store` of the starts and the records.
    """

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
