"""Runner: each check in a process of its own, within its time limit and the budget."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kbatch.gpu_checks.attempt import Attempt
from kbatch.gpu_checks.check import NOT_REHEARSED, Check, Result, Row
from kbatch.gpu_checks.report import COMPLETE, STOPPED, Report

POLL_SECONDS = 0.05  # chosen by hand, not tuned
AT_ONCE = 3  # checks that keep to a memory limit and are not timed


@dataclass(frozen=True)
class RunOptions:
    """How checks are run.

    Attributes:
        rehearsed: Boolean, whether the GPU is the fake.
        budget_seconds: Float, seconds for all checks together.
        at_once: Integer, checks that share the GPU at a time.
        on_row: Function called with every `Row`, and with how many there will be.
    """

    rehearsed: bool
    budget_seconds: float = math.inf
    at_once: int = 1
    on_row: Callable[[Row, int], None] = lambda row, count: None


class Runner:
    """Runs checks one after another, or a few at once, and reports each as soon as it is known."""

    def __init__(self, options: RunOptions, report: Report) -> None:
        self.options, self.report = options, report
        self._ends = time.monotonic() + options.budget_seconds
        self._running: list[Attempt] = []
        self._count = 0

    def run(self, checks: Sequence[Check]) -> None:
        """Run the checks in their order.

        A `KeyboardInterrupt` ends the processes; the rows so far stay in the report.
        """
        waiting, self._count = deque(checks), len(checks)
        try:
            while waiting or self._running:
                while waiting and self._has_place_for(waiting[0]):
                    self._begin(waiting.popleft())
                self._collect()
                time.sleep(POLL_SECONDS if self._running else 0)
        except KeyboardInterrupt:
            self.report.end(STOPPED)
            raise
        finally:
            for attempt in self._running:
                attempt.kill()
        self.report.end(COMPLETE)

    def _has_place_for(self, check: Check) -> bool:
        if not self._running:
            return True
        together = check.shares and all(attempt.check.shares for attempt in self._running)
        return together and len(self._running) < self.options.at_once

    def _begin(self, check: Check) -> None:
        left = self._ends - time.monotonic()
        if self.options.rehearsed and check.unrehearsed:
            self._add(check, Result(None, text=f"{NOT_REHEARSED}: {check.unrehearsed}"), 0.0)
        elif left < check.expected_seconds:
            self._add(check, Result(None, text="not begun: the budget was spent"), 0.0)
        else:
            self._running.append(Attempt(check, min(check.seconds_limit, left)))

    def _collect(self) -> None:
        for attempt in list(self._running):
            result = attempt.result()
            if result is not None:
                self._running.remove(attempt)
                self._add(attempt.check, result, attempt.seconds)

    def _add(self, check: Check, result: Result, seconds: float) -> None:
        row = Row.of(check, result, seconds)
        self.report.add(row)
        self.options.on_row(row, self._count)
