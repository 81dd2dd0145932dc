"""Probe: the result of one batch size, tried in a worker, and the errors that travel with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kbatch import errors
from kbatch.errors import KbatchError, MemoryLimitError, ModelError

# TensorFlow 2.21.0 waits up to 10 s for memory before it fails an allocation
# (third_party/xla/xla/tsl/framework/allocator_retry.cc). Half of it, and four times the fastest
# step, tell such a wait from a slow step. Chosen by hand.
WAITED_SECONDS, WAITED_TIMES = 5.0, 4.0
SUSPECTS = ("suspect", "died", "hung")  # out of memory only if a smaller batch passes


@dataclass(frozen=True)
class Probe:
    """The result of one batch size.

    Attributes:
        batch_size: Integer, examples per forward and backward pass.
        ended: `"passed"` or `"out_of_memory"`. `"suspect"` (an ambiguous error), `"died"` (the
            process ended) and `"hung"` mean out of memory only if a smaller batch passes.
        peak_bytes: Integer, peak bytes in use during the steps, or until the failure.
        seconds: Float, wall-clock seconds of the whole probe.
        step_seconds: Tuple of floats, of each step that passed; the first one traces and compiles.
        message: String, the text of the error.
        phase: `"training"`, or `"validation"` if validation failed after all steps were trained.
        first_peak_bytes: Integer, peak bytes of the first step where that one is not counted in
            `peak_bytes`, else 0. On a GPU cuDNN tries its algorithms in the first step, with
            scratch memory that no later step needs.
    """

    batch_size: int
    ended: str
    peak_bytes: int
    seconds: float
    step_seconds: tuple[float, ...] = ()
    message: str = ""
    phase: str = "training"
    first_peak_bytes: int = 0

    @property
    def passed(self) -> bool:
        """Whether all steps were trained."""
        return self.ended == "passed"


@dataclass(frozen=True)
class ModelFacts:
    """Bytes of a model before it trains.

    Attributes:
        limit_bytes: Integer, bytes that the device may use, or `None` if the device cannot tell.
        device: String, the device in words.
        weight_bytes: Integer, bytes of the model's variables.
        slot_bytes: Integer, bytes of the optimizer's variables.
        gradient_bytes: Integer, bytes of one gradient: of the trainable weights.
        contiguous_bytes: Integer, the largest free block after the variables are made, within the
            limit less its margin.
        lowest_values: Own hyperparameters that nobody chose, at their lowest values.
    """

    limit_bytes: int | None
    device: str
    weight_bytes: int
    slot_bytes: int
    gradient_bytes: int
    contiguous_bytes: int
    lowest_values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def static_bytes(self) -> int:
        """Bytes of all variables."""
        return self.weight_bytes + self.slot_bytes


@dataclass(frozen=True)
class Refusal:
    """An error of a worker, as three clauses.

    Attributes:
        kind: Name of the error's class; empty for an error of the user's own code.
        must: The first clause; empty for an error that is not kbatch's.
        received: The second clause, or the text of the error.
        do: The third clause.
    """

    kind: str
    must: str
    received: str
    do: str

    def error(self, doing: str, limit_bytes: int | None) -> KbatchError:
        """The error to raise in the parent.

        Args:
            doing: String, the first clause of an error of the user's own code, such as
                `"`build` must return a model"`.
            limit_bytes: Integer, the limit of the worker, or `None`.
        """
        if self.must:
            kind: type[KbatchError] = getattr(errors, self.kind)
            return kind(self.must, self.received, self.do)
        if self.kind == "MemoryLimitError":
            room = "what the device has" if limit_bytes is None else f"{limit_bytes / 1e6:,.1f} MB"
            received = f"{room}, in which they do not ({self.received.splitlines()[0]})"
            return MemoryLimitError(
                "A model and its optimizer must fit into the memory limit",
                received,
                "Raise the limit, or take a smaller model",
            )
        return ModelError(
            doing,
            self.received,
            "Train it with model.fit on a few examples first: the same error shows there",
        )


def waited(step_seconds: Sequence[float]) -> bool:
    """Whether the last step waited for memory to become free, as TensorFlow lets it for 10 s.

    Args:
        step_seconds: Seconds of the steps so far; the first one traces and compiles.

    Example:
    >>> waited([4.0, 0.3, 0.3]), waited([4.0, 0.3, 9.8])
    (False, True)
    """
    return len(step_seconds) > 1 and step_seconds[-1] > max(
        WAITED_SECONDS, WAITED_TIMES * min(step_seconds)
    )
