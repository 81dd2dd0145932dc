"""Task: the model and the data that a command lets the driver search for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kbatch.data.examples import Examples, Progress
from kbatch.model_spec import ModelSpec


@dataclass(frozen=True)
class Searched:
    """A model and its data, ready to be searched.

    Attributes:
        spec: `ModelSpec` of the model.
        examples: `Examples` whose labels suit the model's loss.
        metric: String, the scored metric.
        direction: `"max"` or `"min"`; `None` if its name tells.
        chance: Float, the metric of a model that learned nothing; `None` to infer it.
        facts: Facts of the search that an earlier run of the project must have had too.
        words: String, a line on model and labels for the terminal; empty for none.
    """

    spec: ModelSpec
    examples: Examples
    metric: str = "val_accuracy"
    direction: str | None = None
    chance: float | None = None
    facts: tuple[tuple[str, Any], ...] = ()
    words: str = ""


class Task(Protocol):
    """The model and the data of a search, in the order in which the driver asks for them."""

    @property
    def command(self) -> str:
        """The command without its options, such as `kbatch cats-vs-dogs`, for the report."""

    @property
    def images(self) -> bool:
        """Whether the examples are pictures, which may be augmented."""

    @property
    def total(self) -> int | None:
        """How many examples are read while a bar is shown; `None` if unknown."""

    def check(self) -> None:
        """Refuse data that cannot be used, as far as that is quick. Imports no TensorFlow."""

    def spec(self) -> ModelSpec:
        """Return the model to find the largest batch of. Its function can be sent to a worker."""

    def example(self) -> Any:
        """Return the shape of one example; `None` for that of the model's input."""

    def load(self, on_progress: Progress) -> Examples:
        """Return the data."""

    def size(self) -> str:
        """Return the size of one example in words, such as `64 px`; empty if it goes without."""

    def searched(self, examples: Examples) -> Searched:
        """Return model and data, once TensorFlow may be used."""
