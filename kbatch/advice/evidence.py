"""Evidence: what is known of a recipe, its model, its results and its data when advice is given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kbatch.advice.model_traits import ModelTraits
from kbatch.advice.past_results import PastTraining, Results
from kbatch.combination import Combination
from kbatch.recipe import Recipe
from kbatch.recipe_fields import COMPILED
from kbatch.rules import batch_schedule


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
