"""Examples: arrays to train, validate and test on, how they are split, and the memory they take."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

import numpy as np

from kbatch import plain_text
from kbatch.errors import DataError

Progress = Callable[[int], None]  # called with the number of examples that are ready so far
Part = tuple[np.ndarray, np.ndarray]


def untold(count: int) -> None:
    """Tell nobody how many examples are ready: a `Progress` where none is shown."""


TRAIN, VALIDATION, TEST = "train", "validation", "test"
PARTS = {
    **dict.fromkeys(("train", "training", "train_set", "training_set", "trainset"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "val_set", "validation_set"), VALIDATION),
    **dict.fromkeys(("test", "testing", "test_set", "testing_set", "testset"), TEST),
}
WHOLE = ""  # the part of data that are not split yet


@dataclass(frozen=True)
class Form:
    """The form of one example, before any is read."""

    shape: tuple[int, ...]
    dtype: str  # NumPy's name of a type of numbers


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


MUST_SPLIT = (
    "--split must be the percentages to train, to validate and to test on, which add up to 100"
)
FEW_TO_VALIDATE = (
    100  # to validate on: below that an accuracy moves by more than a point an example
)


@dataclass(frozen=True)
class Shares:
    """Percentages of the data."""

    train: float  # above 0
    validation: float  # above 0
    test: float  # float; 0 for no test set

    @property
    def least(self) -> int:
        """The fewest examples of a class that give one to each part."""
        return 3 if self.test else 2

    def beside(self, parts: Container[str]) -> Shares:
        """Return the shares of data of which these parts are there already."""
        if TEST not in parts:
            return self
        both = self.train + self.validation
        return Shares(100 * self.train / both, 100 * self.validation / both, 0.0)

    def sizes(self, count: int) -> tuple[int, int, int]:
        """Return the numbers of examples of the parts, at least 1 of each that has a share.

        Example:
        >>> Shares(60, 20, 20).sizes(10), Shares(60, 20, 20).sizes(3), Shares(80, 20, 0).sizes(9)
        ((6, 2, 2), (1, 1, 1), (7, 2, 0))
        """
        validation = max(1, round(count * self.validation / 100))
        test = max(1, round(count * self.test / 100)) if self.test else 0
        while count - validation - test < 1:
            validation, test = (
                (validation - 1, test) if validation > test else (validation, test - 1)
            )
        return count - validation - test, validation, test


def shares_of(text: str) -> Shares:
    """Read the text of `--split`.

    Example:
    >>> shares_of("80,20")
    Shares(train=80.0, validation=20.0, test=0.0)
    """
    numbers = [plain_text.number(part) or 0.0 for part in text.split(",")]
    right = len(numbers) in (2, 3) and min(numbers[:2]) > 0 and min(numbers) >= 0
    if not right or abs(sum(numbers) - 100) > 1e-6:
        raise DataError(MUST_SPLIT, text, "Write 60,20,20, or 80,20 for no test set")
    return Shares(numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else 0.0)


def stratified(
    strata: np.ndarray, shares: Shares, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split examples at random, so that each part holds the same share of each class.

    The same seed splits the same examples in the same way.
    """
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for place, value in enumerate(np.unique(strata)):
        mixed = np.random.default_rng([seed, place]).permutation(np.flatnonzero(strata == value))
        first, second, _ = np.cumsum(shares.sizes(len(mixed)))
        for part, positions in zip(parts, np.split(mixed, [first, second]), strict=True):
            part.append(positions)
    train, validation, test = (np.sort(np.concatenate(part)) for part in parts)
    return train, validation, test


def parted(
    read: Mapping[str, Part],
    shares: Shares,
    seed: int,
    strata: Callable[[np.ndarray, Shares], np.ndarray],
) -> tuple[Part, Part, Part | None]:
    """Return what to train, validate and test on; what is not there yet is split off.

    Args:
        read: Examples and labels of each part, or of the whole.
        shares: `Shares` of the whole.
        seed: Integer, the seed of the split.
        strata: Function from the labels and the shares that they are split by to the class of each
            example. It refuses labels that are too few.
    """
    x, y = read[TRAIN] if TRAIN in read else read[WHOLE]
    if VALIDATION in read:
        return (x, y), read[VALIDATION], read.get(TEST)
    shares = shares.beside(read)
    cuts = stratified(strata(y, shares), shares, seed)
    train, validation, test = ((x[cut], y[cut]) for cut in cuts)
    return train, validation, read.get(TEST, test if len(test[1]) else None)


COPIES = 2  # the whole and its parts; later the parts and TensorFlow's tensors


def check_room(needed_bytes: int, words: str, remedy: str) -> None:
    """Refuse data that do not fit into the memory that is free, before they are read."""
    import psutil

    free = psutil.virtual_memory().available
    if COPIES * needed_bytes > free:
        raise DataError(
            f"Data must fit into memory {COPIES} times: {words} take "
            f"{needed_bytes:,} bytes each time",
            f"{free:,} bytes that are free",
            remedy,
        )
