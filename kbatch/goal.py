"""The goal of a search: seconds, metric, chance and target of every trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kbatch import json_form, scoring
from kbatch.errors import RecordError
from kbatch.json_form import Name, Number, SecondsAbove0, Text
from kbatch.outcome import Outcome
from kbatch.scoring import Direction


@dataclass(frozen=True)
class Goal:
    """The seconds that every trial gets, and the metric that it is judged by.

    Attributes:
        seconds: Float, the horizon: training seconds of each trial.
        metric: String, such as `"val_accuracy"`.
        direction: `"max"` or `"min"`.
        chance: Float, the metric of a model that learned nothing.
        target: Float, the value that is good enough; `None` for as good as possible.
        note: A sentence on how chance was inferred; empty if the user gave it or it is plain.
    """

    seconds: SecondsAbove0
    metric: Name
    direction: Direction
    chance: Number
    target: Number | None = None
    note: Text = ""

    def score(self, outcome: Outcome) -> float:
        """Return an outcome's score; 0 if the training failed.

        A training that the search stopped is scored as if it had held its value to the horizon.
        """
        if outcome.failed:
            return 0.0
        return scoring.score(outcome.curve, self.seconds, self.chance, self.target, self.direction)

    def gain(self, curve: scoring.Curve) -> float:
        """Return what a curve has gained above chance so far, without the target."""
        return scoring.gain(curve, self.chance, self.direction)

    def logs(self, outcome: Outcome, score: float) -> dict[str, float]:
        """Return the finite numbers of a trial for KerasTuner, in which NaN and `None` break."""
        value = outcome.value
        if value is None or not math.isfinite(value):
            value = self.chance
        return {
            "score": float(score),
            self.metric: float(value),
            "train_seconds": float(outcome.train_seconds),
            "examples_per_second": float(outcome.examples_per_second),
            "oom": float(outcome.ended == "out_of_memory"),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the goal in JSON's own types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Goal:
        """Read the goal that `to_dict` made, also after JSON.

        Raises:
            RecordError: If a field is missing, unknown or of another type.
        """
        return json_form.read(cls, dict(fields), _no_goal)


def _no_goal(received: str) -> RecordError:
    return RecordError(
        "A project's goal must have seconds, metric, direction, chance and perhaps a target",
        received,
        "Move the folder away, or start in another one",
    )
