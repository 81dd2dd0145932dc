"""A table of recorded trainings: recipes, each trained with several seeds."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from kbatch import outcome, plain_text
from kbatch.errors import RecordError
from kbatch.outcome import SCORED
from kbatch.plain_text import FiniteAbove0, Whole
from kbatch.recipe import Recipe
from kbatch.records import files
from kbatch.records import project as records_project
from kbatch.results.loading import load_records, load_validation_examples
from kbatch.results.uncertainty import is_share


@dataclass(frozen=True)
class RecordedTraining:
    """One recorded training, a line of a table.

    Attributes:
        recipe: `Recipe` of the training.
        seed: Integer, seed of the weights and of the order of the data.
        horizon: Float, training seconds that it was given.
        chance: Float, the value of a model that learned nothing.
        curve: Tuple of `(train_seconds, value)`; empty if it failed.
        peak_bytes: Integer, the largest number of bytes in use; `None` if unknown.
        validation_examples: Integer, how many the value is a share of; `None` if it is no share,
            or unknown.
    """

    recipe: Recipe
    seed: Whole
    horizon: FiniteAbove0
    chance: float
    curve: tuple[tuple[float, float], ...]
    peak_bytes: Whole | None = None
    validation_examples: Whole | None = None

    def held(self, seconds: float) -> float:
        """Return the value held above chance within so many training seconds.

        Args:
            seconds: Float, training seconds. A training that is stopped then ends with a
                measurement, the next one of the curve.
        """
        return outcome.score(self._until(seconds), self.horizon, self.chance) * self.horizon

    def gain(self, seconds: float) -> float:
        """Return what it has gained above chance within so many seconds; see `kbatch.outcome.Goal`.

        Args:
            seconds: Float, training seconds; see `held`.
        """
        return outcome.gain(self._until(seconds), self.chance)

    def seconds(self, seconds: float) -> float:
        """Return the training seconds that it takes until it is stopped; 0 if it failed.

        Args:
            seconds: Float, training seconds after which it is stopped at the next measurement.
        """
        points = self._until(seconds)
        return points[-1][0] if points else 0.0

    def _until(self, seconds: float) -> tuple[tuple[float, float], ...]:
        before = sum(point[0] < seconds for point in self.curve)
        return self.curve[: before + 1]


def read(path: str | os.PathLike[str]) -> list[RecordedTraining]:
    """Read a table: one line of JSON for each training; `.gz` for a compressed one.

    Raises:
        RecordError: If there is no such file, a line is no training, or the table has none.
    """
    file = Path(path)
    do = "Pass a file that Replay.save wrote"
    try:
        data = file.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError) as error:
        raise RecordError("A table of trainings must be a readable file", f"{error}", do) from error
    trainings = []
    for number, row in enumerate(text.splitlines(), 1):
        if row.strip():
            trainings.append(_training(row, f"{file}, line {number}"))
    if not trainings:
        raise RecordError("A table must hold at least one training", f"{file}, without any", do)
    return trainings


def write(path: str | os.PathLike[str], trainings: Iterable[RecordedTraining]) -> None:
    """Write a table, compressed if the path ends with `.gz`; it appears whole or not at all."""
    rows = [
        json.dumps({**asdict(each), "recipe": each.recipe.to_dict()}, sort_keys=True)
        for each in trainings
    ]
    data = ("\n".join(rows) + "\n").encode()
    # the same table gives the same bytes
    files.write(Path(path), gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def _training(row: bytes, where: str) -> RecordedTraining:
    must = "A line of a table must hold recipe, seed, horizon, chance and curve"
    do = "Write it with Replay.save"

    def refuse(received: str) -> RecordError:
        return RecordError(must, f"{where}: {received}", do)

    fields = plain_text.parse_json(row, refuse)
    if not isinstance(fields, dict) or "recipe" not in fields:
        raise refuse("no recipe")
    fields["recipe"] = asdict(Recipe.from_dict(fields["recipe"]))
    return plain_text.read_json(RecordedTraining, fields, refuse)


def of_project(directory: str | os.PathLike[str]) -> list[RecordedTraining]:
    """Return the trainings of a search and its confirmations, each recipe and seed once.

    Args:
        directory: Folder of the tuner's project.

    Raises:
        RecordError: If it has no search, or none with a score to be maximized.
    """
    project = Path(directory)
    goal = (records_project.load_facts(project / records_project.FOLDER) or {}).get("goal")
    if goal is None or goal["direction"] != "max" or goal.get("target") is not None:
        raise RecordError(
            "A table must come of a search for a higher value, without a target",
            f"{project}: {goal or 'no search'}",
            "Pass the folder of such a tuner's project",
        )
    examples = load_validation_examples(project) if is_share(goal["metric"]) else None
    found: dict[tuple[Recipe, int], RecordedTraining] = {}
    for record in load_records(project):
        outcome = record.outcome
        curve = tuple(outcome.curve) if outcome.ended in SCORED else ()
        training = RecordedTraining(
            record.recipe,
            record.seed,
            goal["seconds"],
            goal["chance"],
            curve,
            outcome.peak_bytes,
            examples,
        )
        found.setdefault((record.recipe, record.seed), training)
    return list(found.values())
