"""Rate: the learning rate and the averaged weights, by the share of the horizon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from kbatch.callbacks.clock import TrainingClock
from kbatch.runtime.keras_private import tensorflow_variable

Share = Callable[[], float]


class Rate:
    """The learning rate of an optimizer, of which each update trains at a share.

    The rate stays a variable of the optimizer. Other callbacks see the full rate where `show` was
    called, and may set another.

    Attributes:
        model: `keras.Model` whose optimizer is meant; set before the first call.
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        self._full = self._shown = 0.0
        self.model: Any = None

    @property
    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set(self, rate: float) -> None:
        self.model.optimizer.learning_rate = rate
        self._shown = self._rate  # as the optimizer holds it, in its own precision

    def show(self) -> None:
        """Show the full rate to other callbacks, unless one has set another."""
        if self._full and self._rate == self._shown:
            self._set(self._full)

    def take(self) -> None:
        """Take the rate that other callbacks have left as the full rate."""
        self._full = self._shown = self._rate

    def train(self) -> None:
        """Set the rate of the next update."""
        share = self._share()
        if share == 1 and self._shown == self._full:
            return
        if self._rate != self._shown:  # a callback of the user's has set it between two batches
            self.take()
        self._set(self._full * share)


class RateCallbacks:
    """Two callbacks that train each update at a share of the learning rate.

    Put them around the user's: `[clock, callbacks.before, *user's, callbacks.after]`. At the start
    and at the end of an epoch, callbacks between the two see the full rate.
    """

    def __init__(self, share: Share) -> None:
        rate = self._rate = Rate(share)
        self.before = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: rate.show(),
            on_epoch_end=lambda epoch, logs: rate.show(),
        )
        self.after = keras.callbacks.LambdaCallback(
            on_train_begin=self._begin,
            on_epoch_begin=lambda epoch, logs: rate.take(),
            on_epoch_end=lambda epoch, logs: rate.take(),
            on_train_batch_begin=lambda batch, logs: rate.train(),
        )

    def _begin(self, logs: Any) -> None:
        self._rate.model = self.after.model
        self._rate.take()


def warmup_share(update: int, updates: int) -> float:
    """Return the share of the full rate during a linear warm-up.

    No update is wasted at rate 0.

    Example:
    >>> [warmup_share(update, 3) for update in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return min((update + 1) / (updates + 1), 1.0)


class _PassEnd:
    """Ends an epoch, but not the training, as the value of `model.stop_training`.

    Keras counts the batches of the first epoch and expects as many of each; a growing batch needs
    fewer and fewer.
    """


PASS_END = _PassEnd()


def end_epoch(model: keras.Model) -> None:
    """End the epoch after this batch, unless a callback has stopped the training."""
    if not model.stop_training:
        model.stop_training = PASS_END


def go_on(model: keras.Model) -> None:
    """Go on with the next epoch, unless a callback has stopped the training."""
    if model.stop_training is PASS_END:
        model.stop_training = False


class PassEnd:
    """Two callbacks that make an epoch one pass over the data, rounded up to whole updates.

    Put `before` in front of all callbacks that look at `model.stop_training`, and `after` behind
    them.
    """

    def __init__(self, examples: Callable[[], int], of_pass: int) -> None:
        self._examples, self._of_pass, self._epoch = examples, of_pass, 0
        self.before = keras.callbacks.LambdaCallback(on_epoch_end=self._go_on)
        self.after = keras.callbacks.LambdaCallback(
            on_epoch_begin=self._begin, on_train_batch_end=self._end
        )

    def _begin(self, epoch: int, logs: Any) -> None:
        self._epoch = epoch

    def _go_on(self, epoch: int, logs: Any) -> None:
        go_on(self.before.model)

    def _end(self, batch: int, logs: Any) -> None:
        if self._examples() >= (self._epoch + 1) * self._of_pass:
            end_epoch(self.after.model)


SHORT = (tf.float16, tf.bfloat16)  # too few digits for an average


class AveragedWeights:
    """The moving average of a model's trainable weights, which begins with the present ones.

    Each update makes it `momentum * average + (1 - momentum) * weights`, as Keras' `use_ema` does.
    Statistics of batch normalization and the scales of float8 are not averaged.

    Attributes:
        variables: List of `tf.Variable`, the averages.
    """

    def __init__(self, model: keras.Model, momentum: float) -> None:
        self._weights = [
            tensorflow_variable(weight)
            for weight in model.trainable_variables
            # scales of float8, which belong to the numbers of the latest updates
            if not getattr(weight, "overwrite_with_gradient", False)
        ]
        self._momentum = momentum
        self.variables = [tf.Variable(_long(weight), trainable=False) for weight in self._weights]
        self._update = tf.function(self._average, autograph=False)

    def update(self) -> None:
        """Take the weights of an update into the average."""
        self._update()

    def _average(self) -> None:
        for average, weight in zip(self.variables, self._weights, strict=True):
            average.assign_add((1 - self._momentum) * (_long(weight) - average))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the averaged weights inside the `with` block, and then its own again."""
        own = [tf.identity(weight) for weight in self._weights]
        self._assign(self.variables)
        try:
            yield
        finally:
            self._assign(own)

    def _assign(self, values: list[Any]) -> None:
        for weight, value in zip(self._weights, values, strict=True):
            weight.assign(tf.cast(value, weight.dtype))


def averages(model: keras.Model, momentum: float | None) -> list[tf.Variable]:
    """Return the variables of a model's moving average; none without a momentum."""
    return [] if momentum is None else AveragedWeights(model, momentum).variables


def _long(weight: Any) -> Any:
    tensor = tf.convert_to_tensor(weight)
    return tf.cast(tensor, tf.float32) if tensor.dtype in SHORT else tensor


class MovingAverage(keras.callbacks.Callback):
    """Callback that averages the weights over the whole updates of a training.

    Put it between the clock and the horizon, which takes `measured` as its argument. Keras'
    `use_ema` averages after each pass of an accumulating optimizer; here only whole updates count.
    The time of averaging is on the clock.
    """

    def __init__(self, clock: TrainingClock, momentum: float) -> None:
        super().__init__()
        self._clock, self._momentum = clock, momentum
        self._updates_seen = 0
        self._average: AveragedWeights | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Take the weights of a whole update into the average."""
        if self._clock.updates == self._updates_seen:
            return
        self._updates_seen = self._clock.updates
        if self._average is None:
            self._average = AveragedWeights(self.model, self._momentum)
        else:
            self._average.update()

    def measured(self) -> AbstractContextManager[None]:
        """Return a `with` block in which the model has the averaged weights."""
        return nullcontext() if self._average is None else self._average.in_place()
