"""Check: one assumption, what it is looked for in, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import keras
import numpy as np

from kbatch.data.streams import Source
from kbatch.data.validation import Data
from kbatch.errors import KbatchError
from kbatch.models.compilation import said_of
from kbatch.models.maker import ModelMaker
from kbatch.models.start import build_called
from kbatch.recipe import Recipe
from kbatch.space import Space


def first_example(part: Any) -> np.ndarray:
    """Return an array of the first example of a batch."""
    return np.asarray(part[:1])


@dataclass(frozen=True)
class Subject:
    """What checks look at."""

    model_maker: ModelMaker
    # Training and validation data; `None` for a finder, which is given shapes perhaps.
    data: Data | None = None
    policy: str = "float32"  # the policy under which models are looked at
    # Names of the augmentation pipelines, and below recompute strategies and schedules, that may be
    # trained with.
    augmentations: Sequence[str] = ("none",)
    recompute: Sequence[str] = ("none",)
    # Recipes that will be trained, as far as they are known: the baseline of a search,
    # or the one recipe of a training.
    recipes: Sequence[Recipe] = ()
    schedules: Sequence[str] = ("constant",)
    accumulates: bool = False  # whether a recipe may take a batch in several passes
    class_weight: Mapping[int, float] | None = None
    compilations: Sequence[bool] = (False,)  # whether XLA may compile the trainings
    seeds: bool = False  # whether trainings with fresh seeds may be compared

    @classmethod
    def of_search(cls, model_maker: ModelMaker, data: Data, space: Space, **more: Any) -> Subject:
        """Return the subject of a search over a space."""
        return cls(
            model_maker,
            data,
            space.baseline.policy,
            tuple({*space.augmentation, space.baseline.augmentation}),
            tuple({*space.recompute, space.baseline.recompute}),
            (space.baseline,),
            schedules=tuple({*space.batch_schedule, space.baseline.batch_schedule}),
            compilations=tuple({*space.compilations, space.baseline.jit_compile}),
            seeds=True,
            **more,
        )

    @classmethod
    def of_training(
        cls, model_maker: ModelMaker, data: Data | None, recipe: Recipe, **more: Any
    ) -> Subject:
        """Return the subject of one training, or of a finder for one recipe."""
        return cls(
            model_maker,
            data,
            recipe.policy,
            (recipe.augmentation,),
            (recipe.recompute,),
            (recipe,),
            schedules=(recipe.batch_schedule,),
            compilations=(recipe.jit_compile,),
            accumulates=recipe.accumulation_steps > 1,
            **more,
        )

    @cached_property
    def model(self) -> keras.Model:
        """A model as the user's `build` returns it; shared by all checks, so do not train it."""
        return self.build()

    @cached_property
    def other(self) -> keras.Model:
        """A model of another call of `build`, with another seed; do not train it either."""
        return self.build(self.model_maker.seed + 1)

    @cached_property
    def loss(self) -> Any:
        """The loss argument of `compile`."""
        return said_of(self.model, self.model_maker.arguments).get("loss")

    @property
    def training(self) -> Source:
        """`Source` of the training examples."""
        if self.data is None:
            raise ValueError("a check of examples needs data")
        return self.data.training

    @property
    def examples(self) -> int:
        """Integer, how many examples a check looks at in a batch."""
        return min(self.training.examples, EXAMPLES)

    @cached_property
    def batch(self) -> tuple[Any, ...]:
        """The first examples to train on, a batch `(x, y)` or `(x, y, sample_weight)`."""
        return tuple(next(iter(self.training.stream(self.examples, 0))))

    @property
    def inputs(self) -> Any:
        """The inputs of the first examples; `None` without data."""
        return None if self.data is None else keras.utils.unpack_x_y_sample_weight(self.batch)[0]

    def build(self, seed: int | None = None) -> keras.Model:
        """Return a new model of the user's `build`, called once if that makes its variables."""
        maker = self.model_maker if seed is None else self.model_maker.with_seed(seed)
        if maker.first.x is None and self.inputs is not None:
            maker.first.x = keras.tree.map_structure(first_example, self.inputs)
        return build_called(
            lambda: maker.raw(self.policy, maker.hyperparameters()),
            self.inputs,
        )

    def make(self, recipe: Recipe) -> keras.Model:
        """Return a new model, compiled for a recipe."""
        return self.model_maker.make(recipe, self.model_maker.hyperparameters())


EXAMPLES = 32  # that checks look at; chosen by hand


@dataclass(frozen=True)
class Finding:
    """What a check measured."""

    holds: bool  # whether the assumption holds
    sentence: str = ""  # what the user is told; empty if there is nothing to tell
    claimable: bool = True  # whether a confirmation may claim a gain in spite of it
    # What the check measured, as JSON can hold it; kept with the project.
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """An assumption of kbatch's, with the function that measures it on the user's own things."""

    name: str  # one or two words
    assumes: str  # what must hold, one sentence
    otherwise: str  # what kbatch does where it does not hold, one sentence
    # Function of a `Subject` that returns a `Finding`, or `None` where the assumption does not
    # concern it. It raises a `KbatchError` to refuse.
    look: Callable[[Subject], Finding | None]


@dataclass(frozen=True)
class Found:
    """A check that was made: its finding or its refusal; neither where it does not concern."""

    check: Check
    finding: Finding | None = None
    refusal: KbatchError | None = None
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """`"holds"`, `"does not hold"`, `"refused"` or `"does not concern"`."""
        if self.refusal is not None:
            return "refused"
        if self.finding is None:
            return "does not concern"
        return "holds" if self.finding.holds else "does not hold"

    @property
    def sentence(self) -> str:
        """What the user is told, or why it is refused; empty if there is nothing to tell."""
        if self.refusal is not None:
            return str(self.refusal)
        return "" if self.finding is None else self.finding.sentence
