"""The checkpoint of a tuner's trial: the file of its kept weights."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from kbatch.runtime import keras_private


@dataclass(frozen=True)
class Checkpoint:
    """The file of a trial's kept weights, and the callbacks that write it.

    Attributes:
        path: Path of the file.
        callbacks: Callbacks that come last at the end of an epoch, when the kept weights are back.
        bytes: Integer, the largest size that the file may have.
    """

    path: Path
    callbacks: Sequence[Any]
    bytes: int

    def fresh(self) -> Checkpoint:
        """Return the same for one training: KerasTuner's callback remembers its best epoch."""
        kind = keras_private.save_best_epoch()
        own = [copy.copy(each) if isinstance(each, kind) else each for each in self.callbacks]
        return dataclasses.replace(self, callbacks=own)


def largest_bytes(model: keras.Model) -> int:
    """Return the largest size of a model's checkpoint, in bytes.

    An optimizer has at most two slots for each weight; a megabyte is for the rest of the file.
    """
    weights = sum(math.prod(variable.shape) * 4 for variable in model.variables)
    return 3 * weights + (1 << 20)
