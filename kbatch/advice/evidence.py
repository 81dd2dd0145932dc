"""Evidence: what rules know of recipe, model, device and data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbatch.advice.past import PastTraining, Results
from kbatch.errors import ModelError
from kbatch.recipe import Recipe
from kbatch.recipe_words import COMPILED
from kbatch.rules import batch_schedule, scaling
from kbatch.space import Combination

MOST_OF_HEAD = 3  # layers: two dense ones and a normalization, say; chosen by hand


@dataclass(frozen=True)
class ModelTraits:
    """What advice needs to know of a model.

    Attributes:
        batch_normalizations: Integer, trainable `BatchNormalization` layers that measure the
            examples of one pass on one device.
        synchronized: Integer, those that measure the examples of a pass on all devices.
        momentum: Float, the largest momentum of the moving statistics of all these; 0 without any.
        frozen: Integer, layers with weights that are not trained.
        layers: Integer, layers with weights.
        optimizer: String, name of the optimizer that the model is compiled with, in lower case;
            empty without one.
        learning_rate: Float, its constant learning rate, or `None`.
        moved: Boolean, whether its new optimizer finds statistics of an earlier training in a
            `BatchNormalization`.
        published: String, name of the model of `keras.applications` that it is or holds; empty
            without one.
    """

    batch_normalizations: int = 0
    synchronized: int = 0
    momentum: float = 0.0
    frozen: int = 0
    layers: int = 0
    optimizer: str = ""
    learning_rate: float | None = None
    moved: bool = False
    published: str = ""

    @property
    def trains_head_only(self) -> bool:
        """Boolean, whether only a few layers on top of frozen ones are trained."""
        trained = self.layers - self.frozen
        return trained <= MOST_OF_HEAD and trained < self.frozen


def traits_of(model: Any) -> ModelTraits:
    """Read the traits of a model."""
    import keras

    from kbatch.models.optimizers import learning_rate_of
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
        moved=not _has_trained(inner) and any(map(_is_moved, layers)),
        published=_published_in(model),
    )


def _has_trained(optimizer: Any) -> bool:
    return optimizer is not None and int(optimizer.iterations) > 0


def _is_moved(layer: Any) -> bool:
    """Whether a layer holds statistics that are not those of a new one."""
    import keras
    import numpy as np

    normalizes = isinstance(layer, keras.layers.BatchNormalization) and layer.built
    return normalizes and bool(np.any(np.asarray(layer.moving_mean) != 0))


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
    """What is known of a recipe; a rule stays silent about what it cannot know.

    Attributes:
        recipe: `Recipe` to advise on.
        model: `ModelTraits`, or `None` without a model.
        results: `Results` of a search, or `None` without any.
        largest_batch: Integer, the largest batch that fits in one pass, or `None` if unknown.
        training_examples: Integer, or `None` if unknown.
        planned_updates: Integer, weight updates that are planned, or `None`.
        shared: Tuple of the validation examples that are training examples too, and of those that
            were looked at; `None` if unknown.
        own_optimizer: String, the class of the optimizer that the model is compiled with, in lower
            case; empty if unknown.
        space: Mapping, the space of the search as its project holds it; empty without one.
        devices: Integer, devices that share a batch.
        pretrained: Boolean, whether the weights come from another training.
    """

    recipe: Recipe
    model: ModelTraits | None = None
    results: Results | None = None
    largest_batch: int | None = None
    training_examples: int | None = None
    planned_updates: int | None = None
    shared: tuple[int, int] | None = None
    own_optimizer: str = ""
    space: Mapping[str, Any] = field(default_factory=dict)
    devices: int = 1
    pretrained: bool = False

    @property
    def is_fine_tuning(self) -> bool | None:
        """Boolean, whether pretrained weights are trained on; `None` if unknown."""
        model = self.model
        if model is not None and model.trains_head_only:
            return False
        if self.pretrained or (model is not None and (model.frozen or model.moved)):
            return True
        return None if model is None or model.published else False

    @property
    def trainings(self) -> tuple[PastTraining, ...]:
        """Tuple of the past trainings; empty without results."""
        return self.results.trainings if self.results else ()

    @property
    def own_trainings(self) -> list[PastTraining]:
        """List of the past trainings of this recipe."""
        return [each for each in self.trainings if each.recipe == self.recipe]

    @property
    def updates(self) -> int | None:
        """Integer, the weight updates of a training of this recipe, or `None` if unknown."""
        if self.planned_updates is not None:
            return self.planned_updates
        whole = [each.updates for each in self.own_trainings if each.ended == "horizon"]
        return max(whole, default=None)

    @property
    def optimizer(self) -> str:
        """String, the optimizer in lower case; empty if it is the unknown one of a model."""
        if self.recipe.optimizer != COMPILED:
            return self.recipe.optimizer
        return self.model.optimizer if self.model else self.own_optimizer

    @property
    def learning_rate(self) -> float | None:
        """Float, the learning rate, that of a compiled model too; `None` if unknown."""
        if self.recipe.learning_rate is not None:
            return self.recipe.learning_rate
        if self.model and self.model.learning_rate:
            return self.model.learning_rate
        told = [each.learning_rate for each in self.own_trainings if each.learning_rate]
        return told[0] if told else None

    @property
    def first_pass(self) -> int:
        """Integer, examples of a pass when the training begins, on all devices."""
        recipe = self.recipe
        return batch_schedule.first_pass(
            recipe.batch_size, recipe.growth.factor, recipe.accumulation_steps
        )

    @property
    def examples_per_pass(self) -> int:
        """Integer, examples of a pass when the training begins, on one device."""
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


# What a rule may need to know, in words, by the name that `Rule.needs` gives it.
KNOWN: dict[str, Callable[[Evidence], bool]] = {
    "results": lambda evidence: evidence.results is not None,
    "model": lambda evidence: evidence.model is not None,
    "largest_batch": lambda evidence: evidence.largest_batch is not None,
    "updates": lambda evidence: evidence.updates is not None,
    "model and updates": lambda evidence: None not in (evidence.model, evidence.updates),
    "data": lambda evidence: evidence.shared is not None,
    "space": lambda evidence: bool(evidence.space),
    "rate": lambda evidence: evidence.learning_rate is not None,
    "fine-tuning": lambda evidence: evidence.is_fine_tuning is not None,
    "own results": lambda evidence: bool(evidence.own_trainings),
}


@dataclass(frozen=True)
class Rule:
    """One thing that a colleague looks at in a recipe.

    Attributes:
        name: String, stable name.
        topic: String, what it looks for, as a noun phrase.
        find: Function from `Evidence` to `Advice`, or to `None` where there is nothing to say.
        needs: Tuple of names of `KNOWN`, one of which must be known to judge; empty for a rule that
            the recipe alone suffices for.
        concerns: Function that tells whether the topic can arise for a recipe at all.
    """

    name: str
    topic: str
    find: Callable[[Evidence], Advice | None]
    needs: tuple[str, ...] = ()
    concerns: Callable[[Evidence], bool] = lambda evidence: True

    def advice(self, evidence: Evidence) -> Advice | None:
        """Return the advice under the rule's name; `None` where there is nothing to say."""
        found = self.find(evidence)
        return None if found is None else dataclasses.replace(found, rule=self.name)

    def is_checked(self, evidence: Evidence) -> bool:
        """Tell whether the evidence suffices to judge."""
        if not self.concerns(evidence) or not self.needs:
            return True
        return any(KNOWN[need](evidence) for need in self.needs)
