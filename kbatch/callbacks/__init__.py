"""Keras callbacks for a training's seconds and batches, which work in a plain `model.fit` too."""

from kbatch.callbacks.batch_schedule import BatchSchedule
from kbatch.callbacks.clock import TrainingClock
from kbatch.callbacks.horizon import Horizon

__all__ = ["BatchSchedule", "Horizon", "TrainingClock"]
