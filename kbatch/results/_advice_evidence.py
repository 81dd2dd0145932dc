"""Evidence: the trainings and facts of an earlier search, and what rules know of a recipe."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kbatch.errors import KbatchError, ModelError, RecordError
from kbatch.memory._max_batch import Table
from kbatch.outcome import SCORED
from kbatch.recipe import Recipe
from kbatch.recipe_words import COMPILED, whole_number
from kbatch.records import project
from kbatch.records.store import BASELINE_TRIAL
from kbatch.results import interval
from kbatch.results.loading import (
    OWN,
    folder_of,
    load,
    load_checks,
    load_confirmations,
    load_own_optimizer,
)
from kbatch.results.words import whose
from kbatch.rules import batch_schedule, scaling
from kbatch.space import Combination

METRIC_PREFIX = "val_"
NEEDED = ("trial", "recipe", "score", "ended", "updates", "examples", "examples_per_second")
# Examples that a value is taken to be measured on where the results do not tell: few, so that only
# large differences count. Chosen by hand.
UNKNOWN_EXAMPLES = 200
# Times by which a score must be higher where its noise is not known; chosen by hand.
CLEARLY = 1.25


@dataclass(frozen=True)
class PastTraining:
    """One training that the results hold."""

    trial: int  # number of the trial; -1 for the baseline
    recipe: Recipe
    score: float  # per second
    value: float | None  # the metric held; `None` if nothing was measured
    ended: str
    updates: int
    examples: int  # trained on
    examples_per_second: float
    input_examples_per_second: float | None = None  # of the input pipeline by itself
    learning_rate: float | None = None  # of a compiled optimizer too; `None` if unknown
    learning_rate_at_32: float | None = None  # the rate scaled back to batch 32
    device: str = ""
    own: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """The training in words."""
        return whose(self.trial)


@dataclass(frozen=True)
class Results:
    """The trainings of a search that ended well, with the noise of their values."""

    trainings: tuple[PastTraining, ...] = ()
    metric: str = ""  # such as `"val_accuracy"`; empty if the results do not tell
    validation_examples: int = 0  # how many examples the metric was measured on; 0 if unknown

    @property
    def of_shares(self) -> bool:
        """Whether the values are shares of examples, so that points can be counted."""
        return interval.is_share(self.metric)

    def noise_of(self, first: PastTraining, second: PastTraining) -> float | None:
        """Return two standard errors of the difference of two values; `None` if unknown."""
        examples = self.validation_examples or UNKNOWN_EXAMPLES
        errors = [
            interval.value_error(each.value, self.metric, examples) for each in (first, second)
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
    for row in frame.to_dict("records"):
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
    """What the folder of a search tells."""

    results: Results  # confirmations among them
    training_examples: int | None = None
    # validation examples that are training examples too, and those that were looked at
    shared: tuple[int, int] | None = None
    limits: int | Table | None = None  # the largest batches
    space: Mapping[str, Any] = field(default_factory=dict)  # the space as the project holds it
    own_optimizer: str = ""  # the class of the model's own optimizer in lower case


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


MOST_OF_HEAD = 3  # layers: two dense ones and a normalization, say; chosen by hand


@dataclass(frozen=True)
class ModelTraits:
    """What advice needs to know of a model."""

    # trainable `BatchNormalization` layers that measure the examples of one pass on one device
    batch_normalizations: int = 0
    synchronized: int = 0  # those that measure the examples of a pass on all devices
    # the largest momentum of the moving statistics of all these; 0 without any
    momentum: float = 0.0
    frozen: int = 0  # layers with weights that are not trained
    layers: int = 0  # layers with weights
    optimizer: str = ""  # that the model is compiled with, in lower case; empty without one
    learning_rate: float | None = None  # its constant one
    # whether its new optimizer finds statistics of an earlier training in BatchNormalization
    moved: bool = False
    # name of the model of `keras.applications` that it is or holds; empty without one
    published: str = ""

    @property
    def trains_head_only(self) -> bool:
        """Whether only a few layers on top of frozen ones are trained."""
        trained = self.layers - self.frozen
        return trained <= MOST_OF_HEAD and trained < self.frozen


def traits_of(model: Any) -> ModelTraits:
    """Read the traits of a model."""
    import keras

    from kbatch.models.optimizers import learning_rate_of
    from kbatch.models.weight_history import has_statistics
    from kbatch.runtime.keras_private import flatten_layers

    if not isinstance(model, keras.Model):
        raise ModelError(
            "`model` must be a keras.Model, or None",
            type(model).__name__,
            "Pass build(), not build",
        )
    layers = [layer for layer in flatten_layers(model) if _has_own_weights(layer)]
    measuring = [
        layer
        for layer in layers
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
    together = sum(bool(getattr(layer, "synchronized", False)) for layer in measuring)
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return ModelTraits(
        batch_normalizations=len(measuring) - together,
        synchronized=together,
        momentum=max((float(layer.momentum) for layer in measuring), default=0.0),
        frozen=sum(not layer.trainable for layer in layers),
        layers=len(layers),
        optimizer="" if inner is None else type(inner).__name__.lower(),
        learning_rate=None if inner is None else learning_rate_of(inner),
        moved=not _has_trained(inner) and any(map(has_statistics, layers)),
        published=_published_in(model),
    )


def _has_trained(optimizer: Any) -> bool:
    return optimizer is not None and int(optimizer.iterations) > 0


def _published_in(model: Any) -> str:
    """The name of the first model of `keras.applications` in a model, by the names of models."""
    import keras

    from kbatch.runtime.keras_private import flatten_layers

    known = [name.lower() for name in dir(keras.applications) if name[0].isupper()]
    for layer in flatten_layers(model):
        own = "".join(filter(str.isalnum, layer.name.lower()))
        if isinstance(layer, keras.Model) and own.startswith(tuple(known)):
            return str(layer.name)
    return ""


def _has_own_weights(layer: Any) -> bool:
    """Whether a layer has weights that are not those of a layer in it, or is a BatchNormalization.

    A random generator's seed is no weight.
    """
    import keras

    if isinstance(layer, keras.layers.BatchNormalization):
        return True
    inner = {id(each) for child in _children(layer) for each in child.weights}
    return any(id(weight) not in inner for weight in layer.weights)


def _children(layer: Any) -> list[Any]:
    from kbatch.runtime.keras_private import flatten_layers

    return [each for each in flatten_layers(layer) if each is not layer]


@dataclass(frozen=True)
class Evidence:
    """What is known of a recipe, `None` where unknown: there a rule stays silent."""

    recipe: Recipe
    model: ModelTraits | None = None
    results: Results | None = None  # of a search
    largest_batch: int | None = None  # that fits in one pass
    training_examples: int | None = None
    planned_updates: int | None = None
    # validation examples that are training examples too, and those that were looked at
    shared: tuple[int, int] | None = None
    own_optimizer: str = ""  # the class of the model's own, in lower case; empty if unknown
    # the space of the search as its project holds it; empty without one
    space: Mapping[str, Any] = field(default_factory=dict)
    devices: int = 1  # devices that share a batch
    pretrained: bool = False  # whether the weights come from another training

    @property
    def is_fine_tuning(self) -> bool | None:
        """Whether pretrained weights are trained on; `None` if unknown."""
        model = self.model
        if model is not None and model.trains_head_only:
            return False
        if self.pretrained or (model is not None and (model.frozen or model.moved)):
            return True
        return None if model is None or model.published else False

    @property
    def trainings(self) -> tuple[PastTraining, ...]:
        """The past trainings; empty without results."""
        return self.results.trainings if self.results else ()

    @property
    def own_trainings(self) -> list[PastTraining]:
        """The past trainings of this recipe."""
        return [each for each in self.trainings if each.recipe == self.recipe]

    @property
    def updates(self) -> int | None:
        """The weight updates of a training of this recipe, or `None` if unknown."""
        if self.planned_updates is not None:
            return self.planned_updates
        whole = [each.updates for each in self.own_trainings if each.ended == "horizon"]
        return max(whole, default=None)

    @property
    def optimizer(self) -> str:
        """The optimizer in lower case; empty if it is the unknown one of a model."""
        if self.recipe.optimizer != COMPILED:
            return self.recipe.optimizer
        return self.model.optimizer if self.model else self.own_optimizer

    @property
    def learning_rate(self) -> float | None:
        """The learning rate, that of a compiled model too; `None` if unknown."""
        if self.recipe.learning_rate is not None:
            return self.recipe.learning_rate
        if self.model and self.model.learning_rate:
            return self.model.learning_rate
        told = [each.learning_rate for each in self.own_trainings if each.learning_rate]
        return told[0] if told else None

    @property
    def first_pass(self) -> int:
        """Examples of a pass when the training begins, on all devices."""
        recipe = self.recipe
        return batch_schedule.first_pass(
            recipe.batch_size, recipe.growth.factor, recipe.accumulation_steps
        )

    @property
    def examples_per_pass(self) -> int:
        """Examples of a pass when the training begins, on one device."""
        return math.ceil(self.first_pass / self.devices)

    def fits_in_one_pass(self) -> PastTraining | int | None:
        """Return what shows that the whole batch fits in one pass; `None` if nothing does."""
        size = self.recipe.batch_size
        if self.largest_batch is not None:
            return self.largest_batch if self.largest_batch >= size else None
        own = {each.own for each in self.own_trainings or self.trainings}
        combination = Combination.of(self.recipe)
        for each in self.trainings:
            alike = each.own in own and len(own) == 1
            if alike and Combination.of(each.recipe) == combination and _passed(each) >= size:
                return each
        return None


def _passed(training: PastTraining) -> int:
    return training.recipe.examples_per_pass


# Keras' default, and another number that examples and courses take; for an optimizer without an
# entry there is no custom.
USUAL = {"sgd": (0.01, 0.001), "adam": (1e-3, 3e-4), "adamw": (1e-3, 3e-4)}
# Rates at batch 32 above these are for training from scratch. Devlin et al. 2019 fine-tune by Adam
# at 2e-5 to 5e-5, Li et al. 2020 by SGD at 0.0005 to 0.01. Chosen by hand above most of these.
FROM_SCRATCH = {"sgd": 5e-3, "adam": 2e-4, "adamw": 2e-4}
SOURCES = {
    "linear": "linear rule, Goyal et al. 2017 (arXiv:1706.02677)",
    "sqrt": "square-root rule, Malladi et al. 2022 (arXiv:2205.10287)",
}
SAME = 0.05  # relative difference of rates that count as one; chosen by hand


def is_usual(optimizer: str, rate: float) -> bool:
    """Tell whether a learning rate is one that people take at batch 32.

    Example:
    >>> is_usual("adam", 1e-3), is_usual("adam", 4e-3), is_usual("lars", 1e-3)
    (True, False, False)
    """
    return any(math.isclose(rate, each, rel_tol=SAME) for each in USUAL.get(optimizer, ()))


def rule_of(optimizer: str) -> str:
    """Return the learning-rate rule of an optimizer, the square root for unknown ones."""
    return scaling.DEFAULT_LEARNING_RATE_RULES.get(optimizer, "sqrt")


def factor(optimizer: str, batch_size: int) -> float:
    """Return by how much an optimizer's rate grows from batch 32 to a batch size.

    Example:
    >>> factor("sgd", 128), factor("adam", 128)
    (4.0, 2.0)
    """
    return scaling.learning_rate_factor(batch_size, rule_of(optimizer))


def is_from_scratch(optimizer: str, rate: float, batch_size: int) -> bool:
    """Tell whether a rate is one for training from scratch, by the rate that it is at batch 32.

    Example:
    >>> is_from_scratch("adam", 1e-3, 32), is_from_scratch("adam", 1e-4, 32)
    (True, False)
    """
    highest = FROM_SCRATCH.get(optimizer)
    # a smaller batch than 32 is no reason for a rate below those that fine-tuning takes
    return highest is not None and rate > highest * max(factor(optimizer, batch_size), 1.0)


def for_fine_tuning(optimizer: str, batch_size: int) -> float:
    """Return a rate for pretrained weights, a quarter of the lowest one for new ones.

    Example:
    >>> for_fine_tuning("adam", 32), for_fine_tuning("adam", 128)
    (5e-05, 0.0001)
    """
    return FROM_SCRATCH[optimizer] / 4 * factor(optimizer, batch_size)


@dataclass(frozen=True)
class Advice:
    """One piece of advice on a recipe; `str` gives its sentence.

    `kbatch.advise` returns a list of them.

    Attributes:
        text: String, what to do: one sentence with the numbers of this case.
        reason: String, why: one or two sentences.
        source: String, the paper, or the trials or measurement that it comes from.
        rule: String, the name of the rule that gave it, such as `"no_warmup"`. It is the same in
            every version.

    Example:
    >>> advice = Advice("Warm up.", "The first updates are steep.", "Goyal et al. 2017")
    >>> print(advice)
    Warm up.
    """

    text: str
    reason: str
    source: str
    rule: str = ""

    def __str__(self) -> str:
        return self.text
