"""Labelled pictures, cut into training, validation and test sets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

PER_CLASS = 1000  # of the case study
LEAST_PER_CLASS = 100  # a fifth is validated on: fewer than 20 cannot tell two recipes apart
# To train, to validate and to test: of each class in the case study 600, 200 and 200.
FIFTHS = (3, 1, 1)


@dataclass(frozen=True)
class Pictures:
    """The case study's data.

    Attributes:
        name: String, the data in words.
        train, validation, test: Tuples of images, uint8 of shape `(n, size, size, 3)`, and labels,
            int32 of shape `(n,)`.
        classes: Names of the classes, in the order of the labels.
        skipped: Names of the files that could not be read.
    """

    name: str
    train: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    classes: tuple[str, ...]
    skipped: tuple[str, ...] = ()

    def first(self, per_class: int) -> Pictures:
        """Return the first pictures of each class: so many to train, a third of that elsewhere.

        Args:
            per_class: Integer, the most pictures of each class to train on.
        """
        third = max(per_class // FIFTHS[0], 1)
        return replace(
            self,
            train=_first(self.train, per_class),
            validation=_first(self.validation, third),
            test=_first(self.test, third),
        )


def _first(
    examples: tuple[np.ndarray, np.ndarray], per_class: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first examples of each class."""
    images, labels = examples
    kept = np.concatenate(
        [np.flatnonzero(labels == label)[:per_class] for label in np.unique(labels)]
    )
    return images[kept], labels[kept]


def split(name: str, by_class: dict[str, np.ndarray], skipped: tuple[str, ...] = ()) -> Pictures:
    """Cut each class's images into three fifths to train, one to validate and one to test.

    Args:
        name: String, the data in words.
        by_class: For each class, the same number of uint8 images of shape `(n, size, size, 3)`.
        skipped: Names of the files that could not be read.
    """
    fifth = min(map(len, by_class.values())) // sum(FIFTHS)

    def part(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        images = np.concatenate([images[first:last] for images in by_class.values()])
        labels = np.repeat(np.arange(len(by_class), dtype="int32"), last - first)
        return images, labels

    cuts = (0, *itertools.accumulate(fifth * share for share in FIFTHS))
    train, validation, test = (part(first, last) for first, last in itertools.pairwise(cuts))
    return Pictures(name, train, validation, test, tuple(by_class), skipped)
