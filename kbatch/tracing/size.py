"""Sizes: bytes alive at one moment of a train step, by part, as lines in the batch size."""

from __future__ import annotations

from dataclasses import dataclass

# TensorFlow's allocator hands out chunks that are larger than asked for: peaks over traces of four
# models, batch 32 and 64, on a CPU.
ALLOCATOR_SLACK = 1.17


@dataclass(frozen=True)
class Size:
    """Bytes as a line in the batch: `fixed + per_example * batch_size`."""

    fixed: float = 0.0
    per_example: float = 0.0

    def __add__(self, other: Size) -> Size:
        return Size(self.fixed + other.fixed, self.per_example + other.per_example)

    def times(self, factor: float) -> Size:
        """The size of so many of them."""
        return Size(self.fixed * factor, self.per_example * factor)

    def at(self, batch_size: int) -> float:
        """Bytes at a batch size."""
        return self.fixed + self.per_example * batch_size


@dataclass(frozen=True)
class Moment:
    """What is alive at one moment of the step, beside the variables."""

    gradients: Size
    activations: Size
    workspace: Size

    @property
    def total(self) -> Size:
        """All of it."""
        return self.gradients + self.activations + self.workspace
