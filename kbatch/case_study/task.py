"""The task of the case study: one of its models on 2,000 pictures of cats and dogs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from kbatch.case_study import pictures
from kbatch.case_study.options import CaseOptions
from kbatch.case_study.pictures import PER_CLASS
from kbatch.data.examples import Examples, Progress
from kbatch.driver.task import Searched
from kbatch.model_spec import ModelSpec


def model(name: str, image_size: int) -> Any:
    """Return the case study's model of a name."""
    from kbatch.case_study.models import MODELS

    return MODELS[name](image_size)


@dataclass(frozen=True)
class CatsVsDogs:
    """The task of `kbatch cats-vs-dogs`; see `kbatch.driver.task.Task`."""

    options: CaseOptions
    command = "kbatch cats-vs-dogs"
    images = True
    total = 2 * PER_CLASS

    def check(self) -> None:
        """Refuse a text that cannot be a source of pictures."""
        pictures.check(self.options.data)

    def spec(self) -> ModelSpec:
        """Return the model of `--model`."""
        build = functools.partial(model, self.options.model, self.options.image_size)
        return ModelSpec(
            build, loss="binary_crossentropy", metrics=["accuracy"], seed=self.options.seed
        )

    def example(self) -> Any:
        """Return the shape of a picture."""
        return (self.options.image_size, self.options.image_size, 3)

    def load(self, on_progress: Progress) -> Examples:
        """Return the pictures."""
        options = self.options
        return pictures.pictures(options.data, options.image_size, options.seed, on_progress)

    def size(self) -> str:
        """Return the size of a picture."""
        return f"{self.options.image_size} px"

    def searched(self, examples: Examples) -> Searched:
        """Return model and pictures, which agree."""
        return Searched(self.spec(), examples)
