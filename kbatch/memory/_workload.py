"""Workload: model, sample and recipe that travel to a worker; no import of TensorFlow."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kbatch.memory._longest import is_text, longest_of, longest_strings, string_lengths
from kbatch.memory._sample import nested, sample_of
from kbatch.model_spec import ModelSpec
from kbatch.recipe import Recipe


@dataclass(frozen=True)
class Workload:
    """A model, how it is trained, and a few examples.

    Attributes:
        spec: `ModelSpec` of the model.
        sample: Tuple of nested arrays of the same few examples: `(x,)`, `(x, y)` or
            `(x, y, sample_weight)`. With `(x,)` the worker makes labels that fit the model's loss;
            with `()` it makes the inputs too.
        recipe: `Recipe` to train by. Its `batch_size` is what is searched for; the number of its
            accumulation steps is kept.
        reserved: Hyperparameter names that `build` must not declare.
        pipelines: Augmentation pipelines by name, for the worker to register.
        at: String, the shape that an answer holds for where examples differ, such as
            `"the longest shape (512,)"`; else `""`.
    """

    spec: ModelSpec
    sample: tuple[Any, ...]
    recipe: Recipe = Recipe()
    reserved: frozenset[str] = frozenset()
    pipelines: Mapping[str, Any] = field(default_factory=dict)
    at: str = ""

    def of(self, recipe: Recipe) -> Workload:
        """The same workload with another recipe."""
        return dataclasses.replace(self, recipe=recipe)

    @property
    def shapes(self) -> Any:
        """Shapes and types of one example, in JSON's own types."""
        return [nested(part, _shape_and_type) for part in self.sample]


def workload_of(
    spec: ModelSpec, x: Any, y: Any, recipe: Recipe, shape: Any = None
) -> tuple[Workload, int | None]:
    """The workload of one recipe, and how many examples the data have, if they tell."""
    sample, examples, at = surveyed(x, y, shape)
    own = pipelines((recipe.augmentation,))
    return Workload(spec, sample, recipe, pipelines=own, at=at), examples


def surveyed(x: Any, y: Any, shape: Any) -> tuple[tuple[Any, ...], int | None, str]:
    """A few examples of the longest shape and strings, how many the data have, and which in words.

    Raises:
        DataError: If the data cannot be used.
    """
    if shape is not None and x is None:
        x = shape
    sample, examples = sample_of(x, y)
    longest = longest_of(x, sample, shape)
    strings = longest_strings(x, y, sample)
    if strings is not None:
        sample = strings.of(sample)
    if longest is not None:
        sample = longest.of(sample)
    told = [each.words for each in (longest, strings) if each is not None]
    return sample, examples, " and ".join(told)


def pipelines(names: tuple[str, ...]) -> dict[str, Any]:
    """The user's own augmentation pipelines among these names, which a worker does not know."""
    augmentation = sys.modules.get("kbatch.data.augmentation")
    return {} if augmentation is None else augmentation.registered(names)


def _shape_and_type(array: Any) -> list[Any]:
    lengths = string_lengths(array) if is_text(array) else {}
    return [*array.shape[1:], str(array.dtype), *(int(each.max()) for each in lengths.values())]
