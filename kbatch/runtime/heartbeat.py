"""The heartbeat of this process: it tells for how long the process was stopped.

SIGSTOP, a paused container and a paused virtual machine stop all threads at once. A busy machine, a
long call that keeps the other threads of Python waiting, and a page that is read from disk only
delay them: then some thread has run, has waited for a processor, or has met page faults.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

TICK = 0.05  # seconds from one beat to the next; chosen by hand
STOPPED = 0.25  # seconds that a beat must be late; a starved thread of nice 19 was late by 0.1
# Of a stop, this share at most may be explained otherwise. Chosen by hand.
EXPLAINED = 0.3
FAULTS = 64  # pages read from disk: a gather of a mapped file has many, a process going on has few


@dataclass(frozen=True)
class Pulse:
    """What a process has used up to a moment.

    Attributes:
        seconds: Float, the moment.
        busy: Mapping from a thread to the seconds that it has run, or waited for a processor.
        process: Float, seconds of all processors.
        faults: Integer, pages that were read from disk.
    """

    seconds: float
    busy: dict[int, float] = field(default_factory=dict)
    process: float = 0.0
    faults: int = 0

    def stopped(self, later: Pulse) -> float:
        """For how many seconds the process was stopped between this pulse and a later one."""
        late = later.seconds - self.seconds - TICK
        if late < STOPPED or later.faults - self.faults > FAULTS:
            return 0.0
        shared = self.busy.keys() & later.busy.keys()
        busiest = max((later.busy[each] - self.busy[each] for each in shared), default=0.0)
        # All processors may have run for the tick; a thread unknown to Python may have run on.
        process = later.process - self.process - TICK * (os.cpu_count() or 1)
        return late if max(busiest - TICK, process) < EXPLAINED * late else 0.0


def taken(now: Callable[[], float], threads: Iterable[int]) -> Pulse:
    """Take the pulse of this process, with these threads."""
    faults = 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    busy = {thread: seconds for thread in threads if (seconds := _busy(thread)) is not None}
    return Pulse(now(), busy, time.process_time(), faults)


def _busy(thread: int) -> float | None:
    """Seconds that a thread has run or waited for a processor; `None` where nothing tells."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            run, waited, _ = file.read().split()
    except (OSError, ValueError):
        return None
    return (int(run) + int(waited)) / 1e9


class Heartbeat:
    """A thread that beats, and the seconds for which this process was stopped since it began.

    Args:
        now: Function that returns the time in seconds. Defaults to `time.perf_counter`.
        pulse: Function that returns a `Pulse`. Defaults to that of this process.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        pulse: Callable[[], Pulse] | None = None,
    ) -> None:
        self._now, self._pulse = now, pulse or functools.partial(_own_pulse, now)
        self._lock = threading.Lock()
        self._last: Pulse | None = None
        self._thread: threading.Thread | None = None
        self._stopped = 0.0

    def __enter__(self) -> Heartbeat:
        self._last = self._pulse()
        # The thread must not keep alive what an error has left behind.
        self._thread = threading.Thread(target=_beat, args=(weakref.ref(self),), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped_seconds()
        with self._lock:
            self._last = self._thread = None

    def beats_in(self, thread: threading.Thread) -> bool:
        """Whether it was begun with this thread, and has not ended."""
        return self._thread is thread

    def stopped_seconds(self) -> float:
        """The seconds for which the process was stopped, those up to this moment included."""
        last = self._last
        if last is not None and self._now() - last.seconds > STOPPED:
            self.beat()
        return self._stopped

    def beat(self) -> None:
        """Take the pulse, and note a stop since the last one."""
        with self._lock:
            if self._last is None:
                return
            pulse = self._pulse()
            self._stopped += self._last.stopped(pulse)
            self._last = pulse


def _own_pulse(now: Callable[[], float]) -> Pulse:
    known = (thread.native_id for thread in threading.enumerate())
    return taken(now, [each for each in known if each is not None])


def _beat(heartbeat: weakref.ref[Heartbeat]) -> None:
    own = threading.current_thread()
    while (living := heartbeat()) is not None and living.beats_in(own):
        living.beat()
        del living
        time.sleep(TICK)
