"""Size: bytes of a tensor as a function of the batch size."""

from __future__ import annotations

from dataclasses import dataclass

# Measured peak over predicted peak, of four models at batches of 32 and 64 on a CPU: TensorFlow's
# allocator hands out chunks that are larger than asked for. Measured by hand; no script repeats it.
ALLOCATOR_SLACK = 1.17


@dataclass(frozen=True)
class Size:
    """Bytes as a line in the batch size: `fixed + per_example * batch_size`."""

    fixed: float = 0.0
    per_example: float = 0.0

    def __add__(self, other: Size) -> Size:
        return Size(self.fixed + other.fixed, self.per_example + other.per_example)

    def times(self, factor: float) -> Size:
        """The line with both numbers multiplied."""
        return Size(self.fixed * factor, self.per_example * factor)

    def at(self, batch_size: int) -> float:
        """Bytes at a batch size."""
        return self.fixed + self.per_example * batch_size


@dataclass(frozen=True)
class Moment:
    """Bytes alive at one moment of the step, not counting the variables.

    Attributes:
        gradients: `Size` of the weights' gradients.
        activations: `Size` of everything that grows with the batch.
        workspace: `Size` of all other tensors, those inside calls and loops included.
    """

    gradients: Size
    activations: Size
    workspace: Size

    @property
    def total(self) -> Size:
        """Bytes of all parts."""
        return self.gradients + self.activations + self.workspace
