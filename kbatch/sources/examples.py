"""Labelled examples, cut into training, validation and test sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Progress = Callable[[int], None]  # called with the number of examples that are ready so far
Part = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Examples:
    """The data of a search.

    Attributes:
        name: String, the data in words.
        train, validation: Tuples of examples and labels, arrays with the same first dimension.
        test: The same; `None` if there are no examples to test on.
        classes: Names of the classes, in the order of the labels; empty if labels are not numbers
            of named classes.
        skipped: Names of the files that could not be read.
        notes: Sentences on what was left out, for the terminal.
    """

    name: str
    train: Part
    validation: Part
    test: Part | None
    classes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sizes(self) -> str:
        """The numbers of examples in words."""
        tested = "none" if self.test is None else f"{len(self.test[1]):,}"
        return (
            f"{len(self.train[1]):,} to train, {len(self.validation[1]):,} to validate, "
            f"{tested} to test"
        )
