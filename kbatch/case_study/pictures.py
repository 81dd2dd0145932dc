"""Labelled pictures, cut into training, validation and test sets."""

from __future__ import annotations

import itertools

import numpy as np

from kbatch.data.examples import Examples

PER_CLASS = 1000  # of the case study
LEAST_PER_CLASS = 100  # a fifth is validated on: fewer than 20 cannot tell two recipes apart
# To train, to validate and to test: of each class in the case study 600, 200 and 200.
FIFTHS = (3, 1, 1)


def split(name: str, by_class: dict[str, np.ndarray], skipped: tuple[str, ...] = ()) -> Examples:
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
    return Examples(name, train, validation, test, tuple(by_class), skipped)
