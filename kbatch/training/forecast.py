"""The forecast of a search: the wall-clock seconds that are left, measured while it runs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from kbatch.records.store import Record
from kbatch.results.duration import Ahead, Taken, taken_of, time_words

BASELINE = "told better once the baseline has ended"


class Forecast:
    """Tells how long the trainings take that are left, from those that ended.

    Each training is told by the thread that waits for it.

    Args:
        ahead: `Ahead`, the trainings that are left when it begins.
        earlier: Records of the trainings that ended before.
        ends_in: Float, seconds after which no training is begun. Optional.
        clock: Function that returns seconds. Defaults to `time.perf_counter`.
    """

    def __init__(
        self,
        ahead: Ahead,
        earlier: Sequence[Record] = (),
        ends_in: float = math.inf,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._ahead, self._clock = ahead, clock
        self._taken = taken_of(earlier)
        self._counted = {_name(record) for record in earlier}
        self._began = clock()
        self._ends_at = self._began + ends_in
        self._last: dict[int, float] = {}  # when each thread's last training ended

    @property
    def done(self) -> int:
        """How many trainings have ended, those before it began among them."""
        return len(self._counted)

    def ended(self, record: Record) -> None:
        """Take up a training that ended, with what came between it and the one before."""
        thread, now = threading.get_ident(), self._clock()
        taken = Taken.of(record, now - self._last.get(thread, self._began))
        self._last[thread] = now
        if taken is not None:
            self._taken.append(taken)
        self.answered(record)

    def answered(self, record: Record) -> None:
        """Count a training that is not made any more."""
        name = _name(record)
        if name in self._counted:
            return
        self._counted.add(name)
        trials, whole = self._ahead.trials, self._ahead.whole
        if record.purpose == "baseline":
            self._ahead = replace(self._ahead, baseline=0)
        elif record.purpose != "search":
            self._ahead = replace(self._ahead, whole=max(whole - 1, 0))
        elif trials is not None:
            self._ahead = replace(self._ahead, trials=max(trials - 1, 0))

    @property
    def seconds_left(self) -> float | None:
        """Wall-clock seconds that are left; `None` before anything was measured."""
        left, now = self._ahead.seconds(self._taken), self._clock()
        if left is not None and self._ahead.workers == 1:
            left = max(left - (now - max(self._last.values(), default=self._began)), 0.0)
        to_budget = max(self._ends_at - now, 0.0)
        if left is None and math.isinf(to_budget):
            return None
        return to_budget if left is None else min(left, to_budget)

    def beginning(self, parts: str) -> str:
        """Return the sentence before the first training.

        Args:
            parts: String, the trainings in words.
        """
        left = self.seconds_left
        if left is not None:
            return f"{parts}: {self._at_most()} {time_words(left)}."
        least = self._ahead.least_seconds
        certain = f"at least {time_words(least)}, and " if self._ahead.trials is not None else ""
        return f"{parts}: {certain}{BASELINE}."

    def after(self, record: Record) -> str:
        """Return what a training took and what is left, in words; empty where that is unknown.

        Args:
            record: `Record` of the training that ended last.
        """
        left = self.words()
        if not left or not self._taken:
            return ""
        trained = f"{record.outcome.train_seconds:.3g} training seconds"
        wall = time_words(self._taken[-1].wall_seconds)
        return f"{trained} took {wall} by the wall clock: {left}"

    def words(self) -> str:
        """Return what is left in words; empty before anything was measured, and at the end."""
        left = self.seconds_left
        if left is None or self._ahead.is_over:
            return ""
        return f"about {time_words(left)} left"

    def _at_most(self) -> str:
        return "about" if math.isinf(self._ends_at) else "at most"


def _name(record: Record) -> tuple[str, int] | str:
    """What tells a training from others: a trial by its number, since a record may answer two."""
    return ("search", record.trial) if record.purpose == "search" else record.key
