"""The training clock: seconds spent on weight updates, and on nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from kbatch.callbacks.input_charge import InputCharge
from kbatch.callbacks.running_median import RunningMedian
from kbatch.errors import ModelError, made_in_one_frame
from kbatch.runtime import device_memory
from kbatch.runtime.worker import Heartbeat


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
