"""Rate: the learning rate of each update, of which the user's callbacks see the full one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

Share = Callable[[], float]


class Rate:
    """The learning rate of an optimizer, of which each update trains at a share.

    The rate stays a variable of the optimizer. Other callbacks see the full rate where `show` was
    called, and may set another.

    Args:
        share: Function that returns the share of the full rate for the next update.

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

    Args:
        share: Function that returns the share of the full rate for the next update.
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

    Args:
        update: Integer, the update, counted from 0.
        updates: Integer, number of weight updates over which the rate rises.

    Example:
    >>> [warmup_share(update, 3) for update in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return min((update + 1) / (updates + 1), 1.0)
