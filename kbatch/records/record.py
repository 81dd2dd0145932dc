"""The record of one training: its recipe, its outcome and where both came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kbatch import json_form
from kbatch.errors import RecordError
from kbatch.json_form import Below, Name, Number, Text, Whole
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe

BASELINE_TRIAL = -1
# A confirmation of a trial's recipe with the baseline's own hyperparameters, which parts a gain.
PARTED = "parted"
FRESH = ("confirmation", PARTED)  # purposes of trainings with fresh seeds


def key_of(values: Mapping[Name, Any], recipe: Recipe, seed: int, purpose: str) -> str:
    """Return a short hash that is equal for two trainings only if they are the same training.

    Args:
        values: Dict, values of all hyperparameters of the trial.
        recipe: `Recipe` of the training.
        seed: Integer, seed of the training.
        purpose: `"search"`, `"baseline"` or `"confirmation"`.
    """
    text = json.dumps(
        [dict(values), json.loads(recipe.to_json()), seed, purpose], sort_keys=True, default=str
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def drawn_of(values: Mapping[str, Any], seed: int) -> str:
    """Return the drawn values and the seed of a trial as a text to compare."""
    return json.dumps([dict(values), seed], sort_keys=True, default=str)


@dataclass(frozen=True)
class Record:
    """One training that ended.

    Attributes:
        key: String, hash that identifies the training (see `key_of`).
        purpose: `"search"`, `"baseline"`, `"confirmation"` or `"parted"` (a confirmation of the
            trial's recipe with the baseline's own hyperparameters).
        trial: Integer, number of the KerasTuner trial; -1 for the baseline.
        seed: Integer, seed of the weights, of the order of the data and of dropout.
        recipe: `Recipe` of the training.
        outcome: `Outcome` of the training.
        score: Float, score of the outcome; 0 if the training ended in an error, NaN or a crash.
        values: Dict, values of all hyperparameters of the trial, including the user's own.
        repeats: Integer, number of the trial whose recipe a search trained again; `None` for any
            other training.
        learning_rate_at_32: Float, the learning rate scaled back to batch 32. `None` if the
            optimizer has a rate of its own.
        test: Dict, metrics of the kept weights on test data, such as `{"accuracy": 0.71}`; empty
            without test data.
        checkpoint: String, path of the kept weights, relative to the project; empty if none were
            kept.
        versions: Dict, versions of Python, TensorFlow, Keras, KerasTuner and kbatch.
        device: String, the device that trained.
        finished_at: String, date and time of the end (UTC, ISO 8601).
    """

    key: Name
    purpose: Name
    trial: Whole
    seed: Whole
    recipe: Recipe
    outcome: Outcome
    score: Number
    values: Mapping[str, Any] = field(default_factory=dict)
    repeats: Whole | None = None
    learning_rate_at_32: Number | None = None
    test: Mapping[Name, float] = field(default_factory=dict)
    checkpoint: Below = ""
    versions: Mapping[Name, Name] = field(default_factory=dict)
    device: Text = ""
    finished_at: Name = ""

    @property
    def baseline(self) -> bool:
        """Boolean, whether this is a training of the baseline recipe."""
        return self.trial == BASELINE_TRIAL

    @property
    def drawn(self) -> str:
        """String, the drawn values and the seed (see `drawn_of`)."""
        return drawn_of(self.values, self.seed)

    @property
    def first_trial(self) -> int:
        """Integer, number of the trial that trained the recipe first."""
        return self.trial if self.repeats is None else self.repeats

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a dict that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Record:
        """Read a record from the dict that `to_dict` made, also after JSON.

        Raises:
            RecordError: If a field is missing, unknown or of another type.
        """
        record = json_form.read(cls, fields, _no_record)
        record.outcome.checked()
        return record


def _no_record(received: str) -> RecordError:
    return RecordError(
        "A record must have the fields that `Record.to_dict` writes",
        received,
        "Read it with the version of kbatch that wrote it",
    )
