"""The outcome of one training, as a frozen value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kbatch import json_form
from kbatch.errors import RecordError
from kbatch.json_form import HUGE, Count, Name, Seconds, Text

SCORED = ("horizon", "target", "callback")  # trainings that show what their recipe is worth
LONGEST_CURVE = 10_000  # measurements; a training makes a dozen
STOPPED = "stopped"  # by the search, at a rung: its score so far is the least that it is worth


@dataclass(frozen=True)
class Outcome:
    """Measurements of one training of one recipe.

    `kbatch.train` returns one; the outcomes of a search stand in its records.

    Attributes:
        ended: String, the reason for the end: `"horizon"`, `"target"`, `"callback"` (one of the
            user's callbacks stopped the training), `"stopped"` (by the search, at a rung),
            `"out_of_memory"`, `"nan"`, or `"crashed"` (the process died twice during this
            training). Records of old versions may say `"error"`.
        curve: Tuple of `(train_seconds, value)`, one pair for each measurement of the metric on the
            validation data.
        value: Float, the metric of the weights that were kept: the value held, or the last value
            measured if there are fewer than three. `None` if nothing was measured.
        metrics: Dict, all metrics of the validation pass that gave `value`, such as
            `{"val_loss": 0.4}`.
        train_seconds: Float, seconds on the training clock.
        median_update_seconds: Float, median seconds of a weight update, the first left out. `None`
            before two updates.
        updates: Integer, number of weight updates.
        examples: Integer, number of examples trained on.
        seconds: Dict, wall-clock seconds by part, from the call of `build` to the end of `fit`:
            `build`, `data`, `input_probe` (timing the input pipeline by itself), `setup`,
            `first_step` (seconds of the first update above the median: tracing, compiling,
            autotuning), `training`, `stopped` (the process stood still within updates, which the
            clock leaves out), `validation`, `callbacks`, `checkpoint` and `finish`; and `total`,
            which is measured separately.
        peak_bytes: Integer, peak device memory above what was in use before the training. `None` if
            the device does not report its memory. On a GPU the first update and the first
            validation are left out, in which cuDNN tries its algorithms.
        utilisation: Dict, load of the NVIDIA GPU during the training: `mean_gpu_percent`,
            `max_gpu_percent`, `mean_memory_bytes`, `max_memory_bytes` and the number of `samples`.
            Empty without a GPU or without nvidia-ml-py; without the percents of a MIG instance.
        plan: String, the recompute plan as `Plan.to_json` writes it; empty without recompute.
        recompute_seconds: Float, seconds of `train_seconds` spent on recomputing, as the plan
            predicts them.
        learning_rate: Float, learning rate of the optimizer. `None` if the optimizer has a schedule
            of its own.
        final_learning_rate: Float, learning rate after the last update, which a callback or a
            schedule may have changed. Warm-up is left out, as in the recipe's learning rate.
        stopped_by: String, class name of the callback that stopped the training; empty if none did.
        skipped_updates: Integer, updates that loss scaling skipped because a gradient was not
            finite.
        input_examples_per_second: Float, speed of the input pipeline by itself. `None` if it was
            not timed.
        message: String, text of the error that ended the training; empty without an error.
        remarks: Tuple of strings, sentences for the user, such as that the training waited for its
            input.
        first_update_peak_bytes: Integer, peak device memory of the first update and the first
            validation on a GPU, above what was in use before the training; else `None`.
        noise_scale: Float, gradient noise scale in examples (McCandlish et al. 2018): the batch
            size above which a larger batch saves few updates. Measured where the recipe
            accumulates, smoothed over the last few hundred updates. `None` where it does not, or
            where the gradient cannot be told from its noise.
        curve_updates: Tuple of integers, weight updates before each measurement of `curve`. Empty
            in records of old versions.

    Example:
    >>> outcome = Outcome("horizon", curve=((1.0, 0.6), (2.0, 0.7)), train_seconds=2.0, examples=64)
    >>> outcome.examples_per_second
    32.0
    """

    ended: Name
    curve: tuple[tuple[Seconds, float], ...] = ()
    value: float | None = None
    metrics: Mapping[Name, float] = field(default_factory=dict)
    train_seconds: Seconds = 0.0
    median_update_seconds: Seconds | None = None
    updates: Count = 0
    examples: Count = 0
    seconds: Mapping[Name, float] = field(default_factory=dict)
    peak_bytes: Count | None = None
    utilisation: Mapping[Name, float] = field(default_factory=dict)
    plan: Text = ""
    recompute_seconds: float = 0.0
    learning_rate: float | None = None
    final_learning_rate: float | None = None
    stopped_by: Name = ""
    skipped_updates: Count = 0
    input_examples_per_second: float | None = None
    message: Text = ""
    remarks: tuple[Text, ...] = ()
    first_update_peak_bytes: Count | None = None
    noise_scale: float | None = None
    curve_updates: tuple[Count, ...] = ()

    @property
    def examples_per_second(self) -> float:
        """Float, examples per second of the training clock; 0 if no time was measured."""
        return self.examples / self.train_seconds if self.train_seconds else 0.0

    @property
    def failed(self) -> bool:
        """Boolean, whether it ended in an error, NaN or a crash, and scores 0."""
        return self.ended not in (*SCORED, STOPPED)

    @property
    def unexplained_seconds(self) -> float:
        """Float, the rest of `seconds["total"]` after all measured parts are subtracted."""
        return self.seconds.get("total", 0.0) - sum(
            s for part, s in self.seconds.items() if part != "total"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as a dict that JSON can hold."""
        return asdict(self)

    def checked(self) -> Outcome:
        """Return this outcome, unless it holds numbers that no training measures.

        Raises:
            RecordError: If a value is finite and beyond all measure, or the curve goes back in
                time or is longer than any training's.
        """
        seconds = [each for each, _ in self.curve]
        if len(seconds) > LONGEST_CURVE or seconds != sorted(seconds):
            raise _no_outcome(f"a curve of {len(seconds):,} measurements that is no training's")
        values = [self.value, self.learning_rate, self.final_learning_rate, self.noise_scale]
        values += [self.recompute_seconds, self.input_examples_per_second]
        for numbers in (self.metrics, self.seconds, self.utilisation):
            values += numbers.values()
        values += [value for _, value in self.curve]
        wrong = [each for each in values if not _is_measurement(each)]
        if wrong:
            raise _no_outcome(f"the number {wrong[0]}")
        return self

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Outcome:
        """Read an outcome from the dict that `to_dict` made, also after JSON.

        Raises:
            RecordError: If a field is missing, unknown or of another type.
        """
        return json_form.read(cls, fields, _no_outcome).checked()


def _is_measurement(value: float | None) -> bool:
    """Whether a metric may have been measured: NaN and infinity may, where a training failed."""
    return value is None or not math.isfinite(value) or abs(value) <= HUGE


def _no_outcome(received: str) -> RecordError:
    return RecordError(
        "An outcome must have the fields that `Outcome.to_dict` writes",
        received,
        "Read it with the version of kbatch that wrote it",
    )
