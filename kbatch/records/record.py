"""Record: a recipe, its outcome and where it came from, as one line of JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.records import kinds

BASELINE_TRIAL = -1


def key_of(values: Mapping[str, Any], recipe: Recipe, seed: int, purpose: str) -> str:
    """What makes two trainings the same one: hyperparameter values, recipe, seed and purpose, as a short hash."""
    text = json.dumps(
        [dict(values), json.loads(recipe.to_json()), seed, purpose], sort_keys=True, default=str
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def drawn_of(values: Mapping[str, Any], seed: int) -> str:
    """What a trial was drawn as: the values of its hyperparameters and the seed, as text that compares."""
    return json.dumps([dict(values), seed], sort_keys=True, default=str)


@dataclass(frozen=True)
class Record:
    """One training that ended.

    Attributes:
        key: What makes this training the same as another (see `key_of`).
        purpose: `"search"`, `"baseline"` or `"confirmation"`.
        trial: Integer, number of the KerasTuner trial; -1 for the baseline.
        seed: Integer, seed of weights, order of the data and dropout.
        recipe: `Recipe` that was trained.
        outcome: `Outcome` that was measured.
        score: Float, the score of the outcome; 0 for all but finite endings.
        values: Values of all hyperparameters of the trial, the user's own among them.
        learning_rate_at_32: Float, the learning rate carried back to batch 32. `None` if the
            optimizer has its own.
        test: What the kept weights reach on test data, such as `{"accuracy": 0.71}`; empty if there
            were none.
        checkpoint: Path of the kept weights, relative to the project; empty if none were kept.
        versions: Versions of Python, TensorFlow, Keras, KerasTuner and kbatch.
        device: What it ran on.
        finished_at: Date and time of its end (UTC, ISO 8601).
    """

    key: str
    purpose: str
    trial: int
    seed: int
    recipe: Recipe
    outcome: Outcome
    score: float
    values: Mapping[str, Any] = field(default_factory=dict)
    learning_rate_at_32: float | None = None
    test: Mapping[str, float] = field(default_factory=dict)
    checkpoint: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    finished_at: str = ""

    @property
    def baseline(self) -> bool:
        """Whether this is a training of the baseline recipe."""
        return self.trial == BASELINE_TRIAL

    @property
    def drawn(self) -> str:
        """What this trial was drawn as (see `drawn_of`)."""
        return drawn_of(self.values, self.seed)

    def to_dict(self) -> dict[str, Any]:
        """The record in JSON's own types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Record:
        """The record that `to_dict` gave, also after a trip through JSON.

        Raises:
            TypeError: If a field is missing, unknown or of another kind.
        """
        record = cls(
            **{
                **fields,
                "recipe": Recipe.from_dict(fields["recipe"]),
                "outcome": Outcome.from_dict(fields["outcome"]),
            }
        )
        for part in (record, record.outcome, record.recipe):
            wrong = kinds.wrong_field(part)
            if wrong is not None:
                raise TypeError(f"`{wrong}` is {getattr(part, wrong)!r:.60}")
        return record
