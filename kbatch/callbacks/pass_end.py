"""The end of a pass over the data, where a growing batch ends an epoch of Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras


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

    Args:
        examples: Function that returns the number of examples trained on so far.
        of_pass: Integer, number of examples in a pass.
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
