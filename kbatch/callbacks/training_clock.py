"""Training clock: seconds spent on weight updates, and on nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from kbatch.callbacks.input_charge import InputCharge
from kbatch.callbacks.running_median import RunningMedian
from kbatch.device import meter
from kbatch.errors import ModelError


class TrainingClock(keras.callbacks.Callback):
    """Measures the seconds that training takes, without validation, checkpoints and compilation.

    Use it in any `model.fit` to know what an update costs; put it first among the callbacks. The
    clock runs from the first batch on, waits for the device before it is read, and stands still
    inside `paused()` and from each
    `on_epoch_end` to the next epoch. The first update traces and compiles, so it is charged the
    median of the later ones, and its excess is `first_step_seconds`. Input that the pipeline made
    while the clock stood still is charged what the pipeline alone takes for it.

    Args:
        accumulation_steps: Integer, batches per weight update. Defaults to `1`.
        input_seconds: Float, seconds that the input pipeline alone takes for one weight update.
            Defaults to `0.0`, which charges only what was waited for.
        now: Function that gives the time in seconds. Defaults to `time.perf_counter`.
        wait: Function that returns once the device has done its work. Defaults to waiting for the
            GPU, if there is one.

    Attributes:
        updates: Integer, weight updates made.
        seconds: Float, training seconds so far; `0.0` until the second update tells what the first
            is charged.
        median_update_seconds: Float, the median update after the first; `None` before there is one.
        first_step_seconds: Float, what the first update took beyond the median.
        update_seconds: List of floats, what each update took, the first among them.

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
        wait: Callable[[], None] = meter.wait,
        *,
        input_seconds: float = 0.0,
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
        self.update_seconds: list[float] = []
        self._later = 0.0
        self._median = RunningMedian()
        self._input = InputCharge(input_seconds)

    @property
    def running(self) -> bool:
        """Whether a batch has begun that this clock saw."""
        return self._since is not None

    @property
    def median_update_seconds(self) -> float | None:
        """The median update after the first, in seconds; `None` before there is one."""
        return self._median.value

    @property
    def first_step_seconds(self) -> float:
        """What the first update took beyond the median: trace, compile, autotune. Can be slightly below 0."""
        return (self.update_seconds[0] if self.update_seconds else 0.0) - (
            self.median_update_seconds or 0.0
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the clock stand still inside the `with`; may be nested."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def pause(self) -> None:
        """Let the clock stand still until the matching `resume`."""
        if self._pauses == 0:
            self._paused_at = self._now()
        self._pauses += 1

    def resume(self) -> None:
        """Let the clock run again; does nothing if it runs."""
        if self._pauses == 1 and self._paused_at is not None:
            paused_seconds = self._now() - self._paused_at
            self._paused_seconds += paused_seconds
            self._input.paused(paused_seconds)
        self._pauses = max(self._pauses - 1, 0)

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse a model whose single updates cannot be seen."""
        steps = getattr(self.model, "steps_per_execution", 1)
        if steps != 1:
            raise ModelError(
                "steps_per_execution must be 1: the clock is read after every update",
                steps,
                "Leave it out of compile()",
            )

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Start the clock at the very first batch."""
        if self._since is None:
            self._since = self._now()
            self._paused_seconds = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a whole update and charge the time since the last one."""
        self._batches += 1
        if self._batches % self.accumulation_steps:
            return
        self._wait()
        now = self._now()
        assert self._since is not None
        update_seconds = now - self._since - self._paused_seconds
        self._since, self._paused_seconds = now, 0.0
        self.updates += 1
        self.update_seconds.append(update_seconds)
        if self.updates == 1:
            self._input.paused(update_seconds)  # it traced and compiled meanwhile
            return
        charged = self._input.of(update_seconds)
        self._median.add(charged)
        self._later += charged
        # A falling median may take back more than an update adds; a clock must not run backwards.
        self.seconds = max(self.seconds, self._later + (self.median_update_seconds or 0.0))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stand still while the other callbacks check, save and report."""
        self.pause()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Run again."""
        self.resume()
