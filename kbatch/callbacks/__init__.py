"""Keras callbacks for the seconds of a training, which also work in a plain `model.fit`."""

from kbatch.callbacks.horizon import Horizon
from kbatch.callbacks.training_clock import TrainingClock

__all__ = ["Horizon", "TrainingClock"]
