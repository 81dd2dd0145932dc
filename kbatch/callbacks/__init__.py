"""Keras callbacks that also work in a plain `model.fit`: the training clock, the horizon, and what they rest on."""

from kbatch.callbacks.horizon import Horizon
from kbatch.callbacks.training_clock import TrainingClock

__all__ = ["Horizon", "TrainingClock"]
