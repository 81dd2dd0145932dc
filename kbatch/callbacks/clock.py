"""Clock: training seconds, without validation, tracing and what else is no training."""

from __future__ import annotations

import functools
import heapq
import os
import statistics
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras

from kbatch.errors import ModelError, made_in_one_frame
from kbatch.runtime import device_memory

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

TICK = 0.05  # seconds from one beat to the next; chosen by hand
BEAT_LATE = 0.25  # seconds that a beat must be late; a starved thread of nice 19 was late by 0.1
# Of a stop, this share at most may be explained otherwise. Chosen by hand.
BEAT_EXPLAINED = 0.3
MOST_FAULTS = (
    64  # pages read from disk: a gather of a mapped file has many, a process going on has few
)


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
        if late < BEAT_LATE or later.faults - self.faults > MOST_FAULTS:
            return 0.0
        shared = self.busy.keys() & later.busy.keys()
        busiest = max((later.busy[each] - self.busy[each] for each in shared), default=0.0)
        # All processors may have run for the tick; a thread unknown to Python may have run on.
        process = later.process - self.process - TICK * (os.cpu_count() or 1)
        return late if max(busiest - TICK, process) < BEAT_EXPLAINED * late else 0.0


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
    """A thread that beats, and the seconds for which this process was stopped since it began."""

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
        if last is not None and self._now() - last.seconds > BEAT_LATE:
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


class RunningMedian:
    """Median of all numbers added so far; an addition takes logarithmic time.

    Example:
    >>> median = RunningMedian()
    >>> for number in (5.0, 1.0, 2.0):
    ...     median.add(number)
    >>> median.value
    2.0
    """

    def __init__(self) -> None:
        self._lower: list[float] = []  # negated: `heapq` has the smallest number first
        self._upper: list[float] = []

    def add(self, number: float) -> None:
        """Add a number."""
        heapq.heappush(self._upper, -heapq.heappushpop(self._lower, -number))
        if len(self._upper) > len(self._lower):
            heapq.heappush(self._lower, -heapq.heappop(self._upper))

    @property
    def value(self) -> float | None:
        """Float, the median; `None` before the first number."""
        if not self._lower:
            return None
        if len(self._lower) > len(self._upper):
            return -self._lower[0]
        return (self._upper[0] - self._lower[0]) / 2


# Updates. After a pause, pipelines were seen to hold about ten batches ready (AUTOTUNE of tf.data,
# on 2 cores); 64 is chosen well above that, not tuned.
MOST_READY = 64
STEADY = 16  # updates in a row that show the seconds of the pipeline; chosen by hand, not tuned


class InputCharge:
    """A charge for input that the pipeline prepared during a pause, and that would cost nothing.

    A pipeline fills its buffers while validation or a callback runs. For as many updates as the
    pipeline can have prepared during the pause, at least the seconds of the pipeline are charged.
    """

    def __init__(self, input_seconds: float = 0.0) -> None:
        self._input_seconds = input_seconds
        self._ready = 0.0
        self._steady: list[float] = []

    def paused(self, seconds: float) -> None:
        """Note a pause of so many seconds."""
        if self._input_seconds > 0:
            self._ready = min(self._ready + seconds / self._input_seconds, MOST_READY)

    def of(self, update_seconds: float) -> float:
        """Return the seconds to charge for an update that took so many."""
        if self._ready >= 1:
            self._ready -= 1
            self._steady.clear()
            return max(update_seconds, self._input_seconds)
        if self._input_seconds > 0:
            self._learn(update_seconds)
        return update_seconds

    def _learn(self, update_seconds: float) -> None:
        """Lower the seconds of the pipeline if many updates without a pause took less."""
        self._steady.append(update_seconds)
        if len(self._steady) == STEADY:
            self._input_seconds = min(self._input_seconds, sum(self._steady) / STEADY)
            self._steady.clear()


@made_in_one_frame
class TrainingClock(keras.callbacks.Callback):
    """Callback that measures training seconds, without validation, checkpoints and compilation.

    Use it in any `model.fit` to know the seconds of an update; put it first among the callbacks.
    The clock starts at the first batch, and waits for the device before it is read. It is paused
    inside `paused()`, and from each `on_epoch_end` to the next epoch. The first update includes
    tracing and compiling, so the median of the later updates is charged for it; the rest is
    `first_step_seconds`. For input that the pipeline prepared during a pause, the seconds of the
    pipeline are charged. Seconds for which the whole process was stopped, as by SIGSTOP or in a
    paused container, are left out: no update was made in them.

    Args:
        accumulation_steps: Integer, batches per weight update. Defaults to `1`.
        now: Function that returns the time in seconds. Defaults to `time.perf_counter`.
        wait: Function that returns once the device has finished its work. Defaults to waiting for
            the GPU, if there is one.
        input_seconds: Float, seconds of the input pipeline by itself for one weight update.
            Defaults to `0.0`, which charges only the time spent waiting for input.
        stopped: Function that returns the seconds for which the process has been stopped so far.
            Defaults to a heartbeat of the clock's own, from the beginning of `fit` to its end.

    Attributes:
        updates: Integer, number of weight updates.
        seconds: Float, training seconds so far; `0.0` until the second update.
        median_update_seconds: Float, median seconds of an update, the first left out; `None` before
            the second update.
        first_step_seconds: Float, seconds of the first update above the median.
        update_seconds: List of floats, seconds of each update, including the first.
        stopped_seconds: Float, seconds of updates that were left out, since the process was stopped
            for half a second or longer.

    Raises:
        ModelError: If the model runs several batches per call (`steps_per_execution`), which hides
            single updates.

    Example:
    ```python
    clock = kbatch.callbacks.TrainingClock()
    model.fit(x, y, epochs=3, callbacks=[clock])
    print(clock.seconds, clock.median_update_seconds, clock.first_step_seconds)
    ```
    """

    def __init__(
        self,
        accumulation_steps: int = 1,
        now: Callable[[], float] = time.perf_counter,
        wait: Callable[[], None] = device_memory.wait,
        *,
        input_seconds: float = 0.0,
        stopped: Callable[[], float] | None = None,
    ) -> None:
        super().__init__()
        self.accumulation_steps, self._now, self._wait = accumulation_steps, now, wait
        self.updates = 0
        self.seconds = 0.0
        self._batches = 0
        self._since: float | None = None
        self._paused_at: float | None = None
        self._pauses = 0
        self._paused_seconds = 0.0
        self._heartbeat = Heartbeat() if stopped is None else None
        self._stopped = stopped or self._heartbeat_stopped
        self._stopped_at_pause = 0.0
        self._stops_known = 0.0  # on the clock so far, or inside of a pause
        self.stopped_seconds = 0.0
        self.update_seconds: list[float] = []
        self._later = 0.0
        self._median = RunningMedian()
        self._input = InputCharge(input_seconds)

    @property
    def running(self) -> bool:
        """Boolean, whether the clock has seen the start of a batch."""
        return self._since is not None

    @property
    def median_update_seconds(self) -> float | None:
        """Float, median seconds of an update, the first left out; `None` before the second."""
        return self._median.value

    @property
    def first_step_seconds(self) -> float:
        """Float, seconds of the first update above the median: tracing, compiling, autotuning.

        Can be slightly below 0.
        """
        first = self.update_seconds[0] if self.update_seconds else 0.0
        return first - (self.median_update_seconds or 0.0)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the clock inside the `with` block; may be nested."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def pause(self) -> None:
        """Pause the clock until the matching `resume`."""
        if self._pauses == 0:
            self._paused_at, self._stopped_at_pause = self._now(), self._stopped()
        self._pauses += 1

    def resume(self) -> None:
        """Let the clock run again, if it is paused."""
        if self._pauses == 1 and self._paused_at is not None:
            paused_seconds = self._now() - self._paused_at
            self._paused_seconds += paused_seconds
            stopped = self._stopped() - self._stopped_at_pause
            self._stops_known += stopped
            self._input.paused(max(paused_seconds - stopped, 0.0))
        self._pauses = max(self._pauses - 1, 0)

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse a model whose single updates cannot be timed, and begin to notice stops."""
        steps = getattr(self.model, "steps_per_execution", 1)
        if steps != 1:
            raise ModelError(
                "steps_per_execution must be 1: the clock is read after every update",
                steps,
                "Leave it out of compile()",
            )
        if self._heartbeat is not None:
            self._heartbeat.__enter__()

    def on_train_end(self, logs: Any = None) -> None:
        """End what notices stops."""
        if self._heartbeat is not None:
            self._heartbeat.__exit__()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Start the clock at the very first batch."""
        if self._since is None:
            self._since, self._stops_known = self._now(), self._stopped()
            self._paused_seconds = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a whole update, and charge the time since the last update."""
        self._batches += 1
        if self._batches % self.accumulation_steps:
            return
        self._wait()
        now = self._now()
        since = now if self._since is None else self._since
        update_seconds = now - since - self._paused_seconds - self._newly_stopped()
        self._since, self._paused_seconds = now, 0.0
        self.updates += 1
        self.update_seconds.append(update_seconds)
        if self.updates == 1:
            self._input.paused(update_seconds)  # the pipeline prepared input meanwhile
            return
        charged = self._input.of(update_seconds)
        self._median.add(charged)
        self._later += charged
        # a falling median may take away more than an update adds; a clock must not run backwards
        self.seconds = max(self.seconds, self._later + (self.median_update_seconds or 0.0))

    def _newly_stopped(self) -> float:
        """Seconds for which the process was stopped since the last update, outside of pauses."""
        stopped = self._stopped()
        new, self._stops_known = max(stopped - self._stops_known, 0.0), stopped
        self.stopped_seconds += new
        return new

    def _heartbeat_stopped(self) -> float:
        return 0.0 if self._heartbeat is None else self._heartbeat.stopped_seconds()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Pause while the other callbacks work."""
        self.pause()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Resume after the pause at the end of the last epoch."""
        self.resume()


class CountingClock:
    """A clock for a `Horizon` of examples instead of seconds.

    Each example counts as one second, so that the training ends with the update that reaches the
    last example. All other attributes are those of the training clock.

    Args:
        clock: `TrainingClock` of the training.
        examples: Function that returns the number of examples trained on so far.
    """

    def __init__(self, clock: TrainingClock, examples: Callable[[], int]) -> None:
        self._clock, self._examples = clock, examples
        self._seconds_at: dict[float, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    @property
    def seconds(self) -> float:
        """Float, number of examples so far."""
        examples = float(self._examples())
        self._seconds_at[examples] = self._clock.seconds
        return examples

    @property
    def median_update_seconds(self) -> float | None:
        """Float, 1 after the first update, `None` before it."""
        return 1.0 if self._clock.updates else None

    def in_seconds(self, curve: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
        """Convert a curve over examples into a curve over seconds of the training clock."""
        return tuple((self._seconds_at[examples], value) for examples, value in curve)


RECENT = 5  # updates; chosen by hand, not tuned


class GrowingClock:
    """A clock for a `Horizon` that expects the next update to take as long as its batch is large.

    All attributes but the median are those of the training clock.

    Args:
        clock: `TrainingClock` of the training.
        size: Function from the number of an update, counted from 0, to its batch size.
    """

    def __init__(self, clock: TrainingClock, size: Callable[[int], int]) -> None:
        self._clock, self._size = clock, size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    @property
    def median_update_seconds(self) -> float | None:
        """Float, seconds that the next update will take, by the last five.

        `None` before the second update.
        """
        updates = self._clock.updates
        recent = range(max(updates - RECENT, 1), updates)
        if not recent:
            return None
        following = self._size(updates)
        return statistics.median(
            self._clock.update_seconds[update] * following / self._size(update) for update in recent
        )
