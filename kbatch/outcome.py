"""Outcome: what one trial measured, as a frozen value that survives a JSON round trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

ENDINGS = ("horizon", "target", "callback", "out_of_memory", "nan", "error", "crashed")
SCORED = ("horizon", "target", "callback")  # the others score 0


@dataclass(frozen=True)
class Outcome:
    """What one training of one recipe measured.

    Attributes:
        ended: How it ended: `"horizon"`, `"target"`, `"callback"` (a callback of the user's stopped
            it),
            `"out_of_memory"`, `"nan"`, `"error"`, or `"crashed"` (the process died twice on it).
        curve: Tuple of `(train_seconds, value)`, one for each measurement of the metric on the
            validation data.
        value: Float, the metric of the weights that were kept: the value held, or the last one
            measured when there are fewer than three. `None` if nothing was measured.
        metrics: Everything measured on the validation data together with `value`, such as
            `{"val_loss": 0.4}`.
        train_seconds: Float, seconds on the training clock.
        median_update_seconds: Float, the median weight update after the first. `None` before two
            updates.
        updates: Integer, weight updates made.
        examples: Integer, examples trained on.
        seconds: Wall-clock seconds by part, `build`'s entry to `fit`'s return: `build`, `data`,
            `input_probe` (the input pipeline timed alone), `setup`, `first_step` (the first
            update's excess over the median: trace, compile, autotune), `training`, `validation`,
            `callbacks`,
            `checkpoint`, `finish`; and `total`, measured on its own.
        peak_bytes: Integer, the most device memory in use above what was in use before. `None` if
            the device cannot tell.
        utilisation: What an NVIDIA card did meanwhile, where nvidia-ml-py is installed:
            `mean_gpu_percent`,
            `max_gpu_percent`, `mean_memory_bytes`, `max_memory_bytes` and the number of `samples`;
            else empty.
        plan: The plan by which the backward pass made tensors again, as `Plan.to_json` gives it;
            empty if there was none.
        recompute_seconds: Float, what of `train_seconds` went into that, as the plan predicts it.
        learning_rate: Float, what the optimizer got. `None` if it keeps a schedule of its own.
        final_learning_rate: Float, the optimizer's rate after the last update, which a callback or
            a schedule may have changed.
        stopped_by: Name of the callback's class that stopped the training, if one did; else empty.
        skipped_updates: Integer, updates that loss scaling skipped because a gradient was not
            finite.
        input_examples_per_second: Float, the speed of the input pipeline alone. `None` if it was
            not timed.
        message: What the error said, if one ended the trial.
        remarks: Tuple of sentences worth knowing, such as that the trial waited for input.
    """

    ended: str
    curve: tuple[tuple[float, float], ...] = ()
    value: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    train_seconds: float = 0.0
    median_update_seconds: float | None = None
    updates: int = 0
    examples: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: int | None = None
    utilisation: Mapping[str, float] = field(default_factory=dict)
    plan: str = ""
    recompute_seconds: float = 0.0
    learning_rate: float | None = None
    final_learning_rate: float | None = None
    stopped_by: str = ""
    skipped_updates: int = 0
    input_examples_per_second: float | None = None
    message: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def examples_per_second(self) -> float:
        """Examples trained on per second of the training clock; 0 if no time was measured."""
        return self.examples / self.train_seconds if self.train_seconds else 0.0

    @property
    def unexplained_seconds(self) -> float:
        """What is left of `seconds["total"]` when every measured part is taken away."""
        return self.seconds.get("total", 0.0) - sum(
            s for part, s in self.seconds.items() if part != "total"
        )

    def to_dict(self) -> dict[str, Any]:
        """The outcome in JSON's own types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Outcome:
        """The outcome that `to_dict` gave, also after a trip through JSON."""
        curve = tuple((float(seconds), float(value)) for seconds, value in fields.get("curve", ()))
        return cls(**{**fields, "curve": curve, "remarks": tuple(fields.get("remarks", ()))})
