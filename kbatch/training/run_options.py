"""The options of one training, besides model, recipe, data and goal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kbatch.models.gradient_noise import INTERVAL


@dataclass(frozen=True)
class RunOptions:
    """The options of one training, besides model, recipe, data and goal.

    Attributes:
        seed: Integer, seed of the order of the data and of dropout.
        own_policy: The user's dtype policy, set again afterwards.
        callbacks: The user's callbacks.
        checkpoint_callbacks: Callbacks that come last at the end of an epoch, when the kept weights
            are back.
        class_weight: Mapping from class to weight, or `None`.
        verbose: Keras' `verbose`.
        on_progress: Function that gets the training seconds and the last value measured, every
            tenth of a second. Optional.
        largest_passed: Integer, the largest micro-batch that has trained in this project; 0 if none
            has. An ambiguous error (such as "No algorithm worked") is taken for out of memory only
            for a larger micro-batch than this.
        examples: Integer, examples to train on instead of the goal's seconds, rounded up to whole
            updates. `None` for the seconds.
        goes_on: Function of the curve that is asked after each measurement, but the last, whether
            the training goes on. Optional.
        noise_interval: Integer, weight updates from one whose gradient noise is measured to the
            next.
    """

    seed: int = 0
    own_policy: str = "float32"
    callbacks: Sequence[keras.callbacks.Callback] = ()
    checkpoint_callbacks: Sequence[keras.callbacks.Callback] = ()
    class_weight: Mapping[int, float] | None = None
    verbose: Any = 0
    on_progress: Callable[[float, float | None], None] | None = None
    largest_passed: int = 0
    examples: int | None = None
    goes_on: Callable[[Sequence[tuple[float, float]]], bool] | None = None
    noise_interval: int = INTERVAL
