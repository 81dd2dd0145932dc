"""Job: one training to make, and the record that it leaves."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import kbatch
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.records.record import BASELINE_TRIAL, Record, key_of
from kbatch.runtime import device_memory


def versions() -> dict[str, str]:
    """Return the versions that a measurement depends on."""
    found = {"python": platform.python_version(), "kbatch": kbatch.__version__}
    for name in ("tensorflow", "keras", "keras-tuner"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def name_of(purpose: str, trial: int, seed: int) -> str:
    """Return the name of a training, for the files of callbacks and the runs of TensorBoard.

    Args:
        purpose: `"search"`, `"baseline"` or `"confirmation"`.
        trial: Integer, number of the KerasTuner trial; -1 for the baseline.
        seed: Integer, seed of the training.

    >>> name_of("search", 4, 0), name_of("confirmation", 4, 1)
    ('4', 'confirmation_trial4_seed1')
    """
    if purpose == "search":
        return str(trial)
    if purpose == "baseline":
        return "baseline"
    recipe = "baseline" if trial == BASELINE_TRIAL else f"trial{trial}"
    return f"{purpose}_{recipe}_seed{seed}"


@dataclass(frozen=True)
class Job:
    """One training to make: enough to tell it from others and to write its record.

    Attributes:
        purpose: `"search"`, `"baseline"` or `"confirmation"`.
        trial: Integer, number of the KerasTuner trial; -1 for the baseline.
        seed: Integer, seed of weights, order of the data and dropout.
        recipe: `Recipe` to follow.
        values: Values of all hyperparameters of the trial.
        learning_rate_at_32: Float, the learning rate carried back to batch 32, or `None`.
        remarks: Sentences on the recipe itself.
        repeats: Integer, number of the trial whose recipe is trained again; `None` for any other.
    """

    purpose: str
    trial: int
    seed: int
    recipe: Recipe
    values: Mapping[str, Any] = field(default_factory=dict)
    learning_rate_at_32: float | None = None
    remarks: tuple[str, ...] = ()
    repeats: int | None = None

    @property
    def key(self) -> str:
        """The key of the record; equal for equal trainings."""
        return key_of(self.values, self.recipe, self.seed, self.purpose)

    def record(
        self,
        outcome: Outcome,
        score: float,
        test: Mapping[str, float] | None = None,
        checkpoint: str = "",
        device: str = "",
    ) -> Record:
        """Return the record of this training.

        Args:
            outcome: Measured `Outcome`.
            score: Float, its score.
            test: Metrics of the kept weights on test data. Optional.
            checkpoint: Path of the kept weights, relative to the project; empty if none were kept.
            device: String, the training device in words. Defaults to that of this process.
        """
        return Record(
            key=self.key,
            purpose=self.purpose,
            trial=self.trial,
            seed=self.seed,
            recipe=self.recipe,
            outcome=outcome,
            score=score,
            values=dict(self.values),
            repeats=self.repeats,
            learning_rate_at_32=self.learning_rate_at_32,
            test=dict(test or {}),
            checkpoint=checkpoint,
            versions=versions(),
            device=device or device_memory.device_words(),
            finished_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )
