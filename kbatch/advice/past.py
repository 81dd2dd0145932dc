"""Past: the trainings and facts of an earlier search, as rules read them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kbatch.errors import KbatchError, RecordError
from kbatch.memory._max_batch import Table
from kbatch.outcome import SCORED
from kbatch.recipe import Recipe
from kbatch.recipe_words import whole_number
from kbatch.records import project
from kbatch.records.store import BASELINE_TRIAL
from kbatch.results import uncertainty
from kbatch.results.loading import (
    OWN,
    folder_of,
    load,
    load_checks,
    load_confirmations,
    load_own_optimizer,
)

METRIC_PREFIX = "val_"
NEEDED = ("trial", "recipe", "score", "ended", "updates", "examples", "examples_per_second")
# Examples that a value is taken to be measured on where the results do not tell: few, so that only
# large differences count. Chosen by hand.
UNKNOWN_EXAMPLES = 200
# Times by which a score must be higher where its noise is not known; chosen by hand.
CLEARLY = 1.25


@dataclass(frozen=True)
class PastTraining:
    """One training that the results hold.

    Attributes:
        trial: Integer, number of the trial; -1 for the baseline.
        recipe: `Recipe` of the training.
        score: Float, score per second.
        value: Float, the metric held; `None` if nothing was measured.
        ended: String, how the training ended.
        updates: Integer, number of weight updates.
        examples: Integer, number of examples trained on.
        examples_per_second: Float, speed of the training.
        input_examples_per_second: Float, speed of the input pipeline by itself, or `None`.
        learning_rate: Float, learning rate, of a compiled optimizer too; `None` if unknown.
        learning_rate_at_32: Float, the rate scaled back to batch 32, or `None`.
        device: String, the device that trained.
        own: Tuple of the user's own hyperparameters and their values.
    """

    trial: int
    recipe: Recipe
    score: float
    value: float | None
    ended: str
    updates: int
    examples: int
    examples_per_second: float
    input_examples_per_second: float | None = None
    learning_rate: float | None = None
    learning_rate_at_32: float | None = None
    device: str = ""
    own: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """String, the training in words."""
        return "the baseline" if self.trial < 0 else f"trial {self.trial}"


@dataclass(frozen=True)
class Results:
    """The trainings of a search that ended well, with the noise of their values.

    Attributes:
        trainings: Tuple of `PastTraining`.
        metric: String, such as `"val_accuracy"`; empty if the results do not tell.
        validation_examples: Integer, how many examples the metric was measured on; 0 if unknown.
    """

    trainings: tuple[PastTraining, ...] = ()
    metric: str = ""
    validation_examples: int = 0

    @property
    def of_shares(self) -> bool:
        """Boolean, whether the values are shares of examples, so that points can be counted."""
        return uncertainty.is_share(self.metric)

    def noise_of(self, first: PastTraining, second: PastTraining) -> float | None:
        """Return two standard errors of the difference of two values; `None` if unknown."""
        examples = self.validation_examples or UNKNOWN_EXAMPLES
        errors = [
            uncertainty.value_error(each.value, self.metric, examples) for each in (first, second)
        ]
        known = [error for error in errors if error is not None]
        return 2 * math.hypot(*known) if len(known) == 2 else None

    def clearly_better(self, first: PastTraining, second: PastTraining) -> bool:
        """Tell whether the first training scored higher than noise explains."""
        if first.score <= second.score:
            return False
        noise_of_both = self.noise_of(first, second)
        timed = first.ended == second.ended == "target"
        if noise_of_both is None or timed or first.value is None or second.value is None:
            return first.score > CLEARLY * second.score
        return first.value - second.value > noise_of_both


def results_of(frames: Sequence[Any]) -> Results:
    """Read tables of `kbatch.results.load` and `load_confirmations`."""
    trainings: list[PastTraining] = []
    metric, told = "", 0
    for frame in frames:
        columns = [str(name) for name in frame.columns]
        metric = metric or next((name for name in columns if name.startswith(METRIC_PREFIX)), "")
        missing = [name for name in NEEDED if name not in columns]
        if missing or metric not in columns:
            raise RecordError(
                "Results must be the whole table of kbatch.results.load",
                f"a table without {', '.join(missing) or 'a column val_…'}",
                "Pass the table, the tuner or the folder of the search",
            )
        trainings += _trainings(frame, metric, [name for name in columns if name.startswith(OWN)])
        counted = frame["validation_examples"] if "validation_examples" in columns else ()
        told = max([told, *(int(_number(count) or 0) for count in counted)])
    return Results(averaged(trainings), metric, told)


def _trainings(frame: Any, metric: str, own: Sequence[str]) -> Iterator[PastTraining]:
    """The trainings of a table that ended well."""
    for _, row in frame.iterrows():
        try:
            training = _training(row, metric, own)
        except (KbatchError, TypeError, ValueError) as error:
            raise RecordError(
                "Each row of results must hold a training", str(error), "Pass the table unchanged"
            ) from error
        if training.ended in SCORED:
            yield training


def averaged(trainings: Iterable[PastTraining]) -> tuple[PastTraining, ...]:
    """Return one training for each recipe and own hyperparameters, with the means over its seeds.

    The best of several seeds would flatter a recipe that was trained more often.
    """
    groups: dict[Any, list[PastTraining]] = {}
    for each in trainings:
        groups.setdefault((each.trial == BASELINE_TRIAL, each.recipe, each.own), []).append(each)
    return tuple(
        replace(
            group[0],
            score=statistics.fmean(each.score for each in group),
            value=_mean([each.value for each in group if each.value is not None]),
        )
        for group in groups.values()
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def best(trainings: Sequence[PastTraining]) -> PastTraining | None:
    """Return the training with the highest score; `None` of none."""
    return max(trainings, key=lambda each: each.score, default=None)


def most_held(trainings: Sequence[PastTraining]) -> PastTraining | None:
    """Return the training that held the highest value; `None` if none held one."""
    held = [each for each in trainings if each.value is not None]
    return max(held, key=lambda each: each.value or 0.0, default=None)


def _training(row: Any, metric: str, own: Sequence[str]) -> PastTraining:
    return PastTraining(
        trial=int(row["trial"]),
        recipe=Recipe.from_dict(row),
        score=_number(row["score"]) or 0.0,
        value=_number(row[metric]),
        ended=str(row["ended"]),
        updates=int(row["updates"]),
        examples=int(row["examples"]),
        examples_per_second=_number(row["examples_per_second"]) or 0.0,
        input_examples_per_second=_number(row.get("input_examples_per_second")),
        learning_rate=_number(row.get("learning_rate")),
        learning_rate_at_32=_number(row.get("learning_rate_at_32")),
        device=str(row.get("device", "")),
        own=tuple((name, str(row[name])) for name in own),
    )


def _number(value: Any) -> float | None:
    """A finite number, or `None` for NaN and for nothing."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class ProjectFacts:
    """What the folder of a search tells.

    Attributes:
        results: `Results`, confirmations among them.
        training_examples: Integer, or `None`.
        shared: Tuple of the validation examples that are training examples too, and of those that
            were looked at, or `None`.
        limits: The largest batches: an integer, a `Table`, or `None`.
        space: Mapping, the space as the project holds it.
        own_optimizer: String, the class of the model's own optimizer in lower case.
    """

    results: Results
    training_examples: int | None = None
    shared: tuple[int, int] | None = None
    limits: int | Table | None = None
    space: Mapping[str, Any] = field(default_factory=dict)
    own_optimizer: str = ""


def facts_of(source: Any) -> ProjectFacts:
    """Read results: the tuner of a search, its folder, or the table of `kbatch.results.load`.

    A table tells nothing but its trainings. Facts that were read before are returned.
    """
    if isinstance(source, ProjectFacts):
        return source
    if hasattr(source, "iterrows"):
        return ProjectFacts(results_of([source]))
    results = results_of([load(source), load_confirmations(source)])
    facts = project.load_facts(folder_of(source)) or {}
    table, validation = facts.get("table"), load_checks(source).get("validation", {})
    counts = [whole_number(validation.get(name), 0) for name in ("shared", "looked_at")]
    return ProjectFacts(
        results,
        (facts.get("data", {}).get("training") or {}).get("examples"),
        None if None in counts else (counts[0] or 0, counts[1] or 0),
        facts.get("max_batch") if table is None else Table.from_dict(table),
        facts.get("space") or {},
        load_own_optimizer(source).lower(),
    )
