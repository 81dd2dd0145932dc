"""Horizon: a training ends by its seconds, and is measured at twelve marks of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch import outcome
from kbatch.callbacks.clock import CountingClock, GrowingClock, TrainingClock
from kbatch.callbacks.evaluation import Passes, evaluated
from kbatch.errors import ModelError, made_in_one_frame
from kbatch.outcome import STOPPED
from kbatch.runtime import keras_private


def measure_validation(model: keras.Model, batches: tf.data.Dataset | Passes) -> dict[str, float]:
    """Evaluate the model on the validation batches.

    `model.evaluate` resets the metrics that `fit` is still adding to, so they are restored. So are
    seed generators: recurrent dropout draws from them in evaluation too, and training must not
    depend on how often it is measured. An evaluation changes neither weights nor optimizer.
    """
    before = [variable.numpy() for variable in model.metrics_variables]
    with keras_private.seeds_kept(model):
        values = evaluated(model, batches)
    # metrics that this evaluation has built come last
    for variable, value in zip(model.metrics_variables, before, strict=False):
        variable.assign(value)
    return single_numbers(values)


def single_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are one number, and leave out one-per-class metrics (`F1Score()`)."""
    return {name: float(value) for name, value in values.items() if np.ndim(value) == 0}


# Loss scaling finds its scale within these: it halves the scale at each, from 2^15 on
# (keras/src/optimizers/loss_scale_optimizer.py, Keras 3.15.1).
MOST_IN_A_ROW = 20


class Finiteness:
    """A watch on the loss of each update.

    One loss that is not finite does not end a training, since loss scaling skips such an update.
    Training is lost once a weight is not finite, or after twenty updates in a row without a finite
    loss.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def lost(self, model: keras.Model, logs: Mapping[str, float] | None) -> bool:
        """Tell whether the training is lost after an update."""
        if math.isfinite((logs or {}).get("loss", 0.0)):
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        if self._in_a_row >= MOST_IN_A_ROW or not weights_are_finite(model):
            return True
        for metric in model.metrics:
            if not _are_finite(metric.variables):
                metric.reset_state()
        return False


def weights_are_finite(model: keras.Model) -> bool:
    """Tell whether every trainable weight is finite."""
    return _are_finite(model.trainable_variables)


def _are_finite(variables: list[keras.Variable]) -> bool:
    numbers = [tf.convert_to_tensor(variable) for variable in variables]
    return all(
        bool(tf.reduce_all(tf.math.is_finite(number)))
        for number in numbers
        if number.dtype.is_floating
    )


def scaled_updates(model: keras.Model) -> int | None:
    """Count the weight updates that loss scaling did not skip; `None` without loss scaling."""
    if not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        return None
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


# progress is shown on the clock, so it must be rare; chosen by hand, not tuned
PROGRESS_SECONDS = 0.1


@made_in_one_frame
class Horizon(keras.callbacks.Callback):
    """Callback that ends training after a number of training seconds, and measures on the way.

    Use it in a plain `model.fit` to give two ways of training the same seconds. Validation is
    measured after the first whole update at or past each of twelve marks
    (`seconds * (k / 12) ** 2`), and once at the end. No update starts that would end past the
    horizon. With a target, validation is measured more often the closer the value is to it. The
    clock is paused during a measurement, and neither weights nor training metrics change. At the
    end the weights of the value *held* are restored: the worst of the best three consecutive
    measurements.

    The logs of an epoch hold `val_…` only if something was measured in that epoch, as with Keras'
    `validation_freq`.

    Args:
        seconds: Float, training seconds until the end.
        validation_data: `tf.data.Dataset` of batches of `(x, y)`, or
            `kbatch.callbacks.evaluation.Passes` over one whose passes are all alike.
        clock: `TrainingClock`, which must come before this callback in the list.
        metric: String, name of the metric as Keras logs it. Defaults to `"val_accuracy"`.
        direction: `"max"` or `"min"`, the direction in which the metric should go. Defaults to
            `"max"`.
        target: Float, a value that is good enough: training ends once it is held. `None` (the
            default) sets none.
        now: Function that returns the time in seconds. Defaults to `time.perf_counter`.
        measured: Function that returns the `with` block in which the model has the weights that are
            measured and kept, such as averaged ones. Defaults to the model's own weights.
        on_progress: Function called every tenth of a training second with the training seconds and
            the last measured value (or `None`). Defaults to `None`.
        goes_on: Function that is given the curve after each measurement but the last, and tells
            whether training goes on. Defaults to `None`, which never ends it.

    Attributes:
        curve: List of `(train_seconds, value)`.
        curve_updates: List of integers, weight updates before each measurement of `curve`.
        ended: `"horizon"`, `"target"`, `"nan"`, `"stopped"` (by `goes_on`), or `"callback"`
            (another callback stopped the training, or `fit` ran out of epochs); `None` during the
            training.
        stopped_by: String, class name of the user's callback that stopped the training, if
            `UserCallback` saw it; else empty.
        measured_in_epoch: Boolean, whether something was measured in the current or the last epoch.
        value: Float, the metric of the kept weights; `None` if nothing was measured.
        metrics: Dict, all metrics that were measured together with `value`.
        validation_seconds: Float, wall-clock seconds of all measurements.

    Raises:
        ModelError: At the first batch, if the clock is not among the callbacks. At the first mark,
            if the model has no such metric; the message lists the metrics that it has.

    Example:
    ```python
    clock = kbatch.callbacks.TrainingClock()
    horizon = kbatch.callbacks.Horizon(60, validation_data=validation, clock=clock)
    model.fit(x, y, epochs=1000, callbacks=[clock, horizon])
    print(kbatch.score(horizon.curve, horizon=60, chance=0.5))
    ```
    """

    def __init__(
        self,
        seconds: float,
        validation_data: tf.data.Dataset | Passes,
        clock: TrainingClock | GrowingClock | CountingClock,
        metric: str = "val_accuracy",
        direction: str = "max",
        target: float | None = None,
        now: Callable[[], float] = time.perf_counter,
        on_progress: Callable[[float, float | None], None] | None = None,
        measured: Callable[[], AbstractContextManager[None]] = nullcontext,
        goes_on: Callable[[Sequence[tuple[float, float]]], bool] | None = None,
    ) -> None:
        super().__init__()
        self._goes_on = goes_on
        self._measured = measured
        self.seconds, self.validation_data, self.clock = seconds, validation_data, clock
        self.metric, self.direction, self.target = metric, direction, target
        self._now, self._on_progress = now, on_progress
        self.curve: list[tuple[float, float]] = []
        self.curve_updates: list[int] = []
        self.ended: str | None = None
        self.value: float | None = None
        self.metrics: dict[str, float] = {}
        self.validation_seconds = 0.0
        self.finished = False
        self.stopped_by = ""
        self.measured_in_epoch = False
        self._next_at = outcome.next_mark(self.curve, seconds, target, direction)
        self._finiteness = Finiteness()
        self._put: set[str] = set()
        self._updates_seen = 0
        self._shown_at = 0.0
        self._updates_measured = 0
        self._last: dict[str, float] = {}
        self._kept: list[Any] | None = None
        self._recent: dict[int, tuple[dict[str, float], list[Any]]] = {}

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Measure after an update past a mark; stop if the next update would end too late."""
        clock = self.clock
        if not clock.running:
            raise ModelError(
                "The clock must be a callback of the same fit",
                "a clock that counts nothing",
                "Pass callbacks=[clock, horizon]",
            )
        if clock.updates == self._updates_seen or self.ended:
            return
        self._updates_seen = clock.updates
        median = clock.median_update_seconds
        if self._is_lost(logs):
            self._stop("nan")
        elif median is not None and clock.seconds + median > self.seconds:
            self._stop("horizon")  # measured in `finish`, which `on_epoch_end` calls
        elif clock.seconds >= self._next_at:
            self._measure()
            if not self._is_sound():
                self._stop("nan")
            elif self._target_held():
                self._stop("target")
            elif not self._is_worth_more():
                self._stop(STOPPED)
        if self._on_progress and clock.seconds - self._shown_at >= PROGRESS_SECONDS:
            self._shown_at = clock.seconds
            self._on_progress(clock.seconds, self.curve[-1][1] if self.curve else None)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Log the measurements of the epoch, and restore the kept weights if training is over."""
        if self.model.stop_training:
            self.finish()
        if logs is not None and self.measured_in_epoch:
            ours = {
                name: value
                for name, value in self._last.items()
                if name not in logs or name in self._put
            }
            self._put.update(ours)  # other names are of validation data that the user gave to `fit`
            logs.update(ours)

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Forget the measurements of the epoch before."""
        self.measured_in_epoch = False
        self._put.clear()

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Finish, if `fit` ran out of epochs before the horizon."""
        self.finish()

    def finish(self) -> None:
        """Measure at the end and restore the kept weights; a second call does nothing."""
        if self.finished:
            return
        self.finished = True
        self.ended = self.ended or "callback"
        if self._updates_measured != self.clock.updates and self.ended != "nan":
            self._measure()
            if not self._is_sound():
                self.ended = "nan"
        if not self.curve:
            return
        kept = outcome.held(self.curve, self.direction)
        index = kept.index if kept else len(self.curve) - 1
        self.metrics, weights = self._recent[index]
        self._last = dict(self.metrics)
        self.value = self.curve[index][1]
        self._kept = weights
        self.restore()
        self._recent.clear()

    def restore(self) -> None:
        """Restore the kept weights again, since other callbacks may have changed them."""
        if self._kept is not None:
            self.model.set_weights(self._kept)

    def _stop(self, why: str) -> None:
        self.ended = why
        self.model.stop_training = True

    def _is_lost(self, logs: dict[str, float] | None) -> bool:
        if math.isfinite((logs or {}).get("loss", 0.0)):
            return self._finiteness.lost(self.model, logs)
        with self.clock.paused():
            return self._finiteness.lost(self.model, logs)

    def _is_sound(self) -> bool:
        """Tell whether the last measurement and the weights are finite.

        Both are checked, since a ReLU can turn NaN weights into finite outputs.
        """
        if not math.isfinite(self.curve[-1][1]):
            return False
        with self.clock.paused():
            return weights_are_finite(self.model)

    def _is_worth_more(self) -> bool:
        if self._goes_on is None:
            return True
        with self.clock.paused():
            return self._goes_on(self.curve)

    def _target_held(self) -> bool:
        return (
            self.target is not None
            and outcome.seconds_to(self.curve, self.target, self.direction) is not None
        )

    def _measure(self) -> None:
        began = self._now()
        with self.clock.paused(), self._measured():
            measured = {
                f"val_{name}": value
                for name, value in measure_validation(self.model, self.validation_data).items()
            }
            if self.metric not in measured:
                raise ModelError(
                    f"`metric` must be one number that the model measures ({', '.join(measured)})",
                    self.metric,
                    "Pass one of these, or compile with it (a metric of a number per class needs "
                    "an average, such as 'macro')",
                )
            self._last = measured
            self._updates_measured = self.clock.updates
            self.measured_in_epoch = True
            self.curve.append((self.clock.seconds, measured[self.metric]))
            self.curve_updates.append(self.clock.updates)
            self._next_at = outcome.next_mark(self.curve, self.seconds, self.target, self.direction)
            self._keep(measured)
        self.validation_seconds += self._now() - began

    def _keep(self, measured: dict[str, float]) -> None:
        """Keep in host memory the weights that may still be held at the end.

        These are the weights of the last three measurements, and of the value held so far.
        """
        newest = len(self.curve) - 1
        self._recent[newest] = (measured, self.model.get_weights())
        kept = outcome.held(self.curve, self.direction)
        needed = {kept.index if kept else newest, *range(newest - outcome.WINDOW + 1, newest + 1)}
        self._recent = {index: item for index, item in self._recent.items() if index in needed}


class EpochEnd:
    """Three callbacks that time the user's callbacks and the checkpoint.

    They also finish the horizon before the checkpoint if a callback of the user's stopped the
    training. Put them around the others:
    `[clock, before, horizon, *user's, between, *checkpoint, after]`.

    Attributes:
        callback_seconds: Float, wall-clock seconds of the user's `on_epoch_end`, without
            measurements.
        checkpoint_seconds: Float, wall-clock seconds of the callbacks between `between` and
            `after`.
        ended_at: Float, time at the end of the last epoch's callbacks; `None` before.
    """

    def __init__(self, clock: TrainingClock, horizon: Horizon, now: Callable[[], float]) -> None:
        self._clock, self._horizon, self._now = clock, horizon, now
        self.callback_seconds = self.checkpoint_seconds = 0.0
        self.ended_at: float | None = None
        self._began = self._between_at = self._validated = 0.0
        self.before = keras.callbacks.LambdaCallback(on_epoch_end=self._begin)
        self.between = keras.callbacks.LambdaCallback(on_epoch_end=self._settle)
        self.after = keras.callbacks.LambdaCallback(on_epoch_end=self._end)

    def _begin(self, epoch: int, logs: dict[str, float]) -> None:
        self._began, self._validated = self._now(), self._horizon.validation_seconds

    def _settle(self, epoch: int, logs: dict[str, float]) -> None:
        if self._horizon.model.stop_training and not self._horizon.finished:
            self._horizon.on_epoch_end(epoch, logs)
        self._between_at = self._now()
        validated = self._horizon.validation_seconds - self._validated
        self.callback_seconds += self._between_at - self._began - validated

    def _end(self, epoch: int, logs: dict[str, float]) -> None:
        self.ended_at = self._now()
        self.checkpoint_seconds += self.ended_at - self._between_at
        self._clock.resume()
