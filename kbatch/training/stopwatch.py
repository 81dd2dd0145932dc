"""Stopwatch: wall-clock seconds of one trial by part, and its whole, measured apart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from kbatch.device import meter
from kbatch.outcome import Outcome


class Stopwatch:
    """Wall-clock seconds by part, and the whole, measured apart; also the device bytes in use before.

    Made at `build`'s entry. `leave_out` takes a stretch out of the whole, such as the baseline's own training.
    """

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.bytes_before = meter.bytes_now()
        self._left_out = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what is inside the `with` as a part of that name."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    @contextmanager
    def leave_out(self) -> Iterator[None]:
        """Leave what is inside the `with` out of the whole."""
        began = time.perf_counter()
        yield
        self._left_out += time.perf_counter() - began

    @contextmanager
    def leave_out_bytes(self) -> Iterator[None]:
        """Do not count device bytes that are taken inside the `with`, such as the data's on a CPU."""
        before = meter.bytes_now()
        yield
        if before is not None and self.bytes_before is not None:
            self.bytes_before += (meter.bytes_now() or before) - before

    def stop(self, outcome: Outcome) -> Outcome:
        """The outcome with all parts and the whole, its peak counted above the bytes in use before."""
        total = time.perf_counter() - self.began - self._left_out
        peak = None if outcome.peak_bytes is None else outcome.peak_bytes - (self.bytes_before or 0)
        return replace(outcome, seconds={**self.seconds, **outcome.seconds, "total": total}, peak_bytes=peak)
