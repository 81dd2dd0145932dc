"""Probe: what trying one batch size in a worker found, as values that travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbatch import errors
from kbatch.errors import KbatchError, MemoryLimitError, ModelError

WAITED_SECONDS, WAITED_TIMES = 5.0, 4.0
SUSPECTS = ("suspect", "died", "hung")  # they mean out of memory only if a smaller batch passes


@dataclass(frozen=True)
class Probe:
    """One batch size, tried.

    Attributes:
        batch_size: Integer, examples per forward and backward pass.
        ended: `"passed"`, `"out_of_memory"`, or what means that only if a smaller batch passes:
            `"suspect"` (an error that large batches die of), `"died"` (the process did), `"hung"`.
        peak_bytes: Integer, the most bytes in use during the steps; of one that did not pass, until
            then.
        seconds: Float, wall-clock seconds of the whole probe.
        step_seconds: Tuple of floats, of each step that passed; the first one traces and compiles.
        message: String, what was said by what failed.
        phase: `"training"`, or `"validation"` if that is what failed after all steps were trained.
    """

    batch_size: int
    ended: str
    peak_bytes: int
    seconds: float
    step_seconds: tuple[float, ...] = ()
    message: str = ""
    phase: str = "training"

    @property
    def passed(self) -> bool:
        """Whether all steps were trained."""
        return self.ended == "passed"


@dataclass(frozen=True)
class ModelFacts:
    """What a worker knows of a model before it trains.

    Attributes:
        limit_bytes: Integer, what the device may use, or `None` if it cannot tell.
        device: String, what the device is.
        weight_bytes: Integer, of the model's variables.
        slot_bytes: Integer, of the optimizer's variables.
        gradient_bytes: Integer, of one gradient, that is of the trainable weights.
        contiguous_bytes: Integer, the largest block that is free once the variables are made, where
            the margin is kept back.
    """

    limit_bytes: int | None
    device: str
    weight_bytes: int
    slot_bytes: int
    gradient_bytes: int
    contiguous_bytes: int

    @property
    def static_bytes(self) -> int:
        """Bytes of all variables."""
        return self.weight_bytes + self.slot_bytes


@dataclass(frozen=True)
class Refusal:
    """An error of a worker as three clauses; all but `received` are empty where the user's own code raised it."""

    kind: str
    must: str
    received: str
    do: str

    def error(self, doing: str, limit_bytes: int | None) -> KbatchError:
        """The error to raise in the parent.

        Args:
            doing: String, what the worker was to do, as a clause such as
                `"`build` must return a model"`.
            limit_bytes: Integer, the limit that the worker keeps to, or `None`.
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
    """Whether the last step only just found room: TensorFlow lets what does not fit wait for up to 10 s until something else is freed.

    Args:
        step_seconds: Seconds of the steps so far; the first one traces and compiles.

    Example:
    >>> waited([4.0, 0.3, 0.3]), waited([4.0, 0.3, 9.8])
    (False, True)
    """
    return len(step_seconds) > 1 and step_seconds[-1] > max(
        WAITED_SECONDS, WAITED_TIMES * min(step_seconds)
    )
