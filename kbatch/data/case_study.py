"""The pictures of the case study: cats and dogs drawn, photographed, or from TFDS."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kbatch.data import tfds
from kbatch.data.drawn import drawn_pets
from kbatch.data.examples import Examples, Form, Part, Progress, Shares, untold
from kbatch.data.pictures import CHANNELS, by_folder, filled, natural, opened
from kbatch.errors import DataError

PER_CLASS = 1000  # of the case study
LEAST_PER_CLASS = 100  # a fifth is validated on: fewer than 20 cannot tell two recipes apart
SHARES = Shares(60.0, 20.0, 20.0)  # of each class in the case study 600, 200 and 200


def split(name: str, by_class: dict[str, np.ndarray], skipped: tuple[str, ...] = ()) -> Examples:
    """Cut each class's images into three fifths to train, one to validate and one to test.

    Args:
        name: String, the data in words.
        by_class: For each class, the same number of uint8 images of shape `(n, size, size, 3)`.
        skipped: Names of the files that could not be read.
    """
    fifths = min(map(len, by_class.values())) // 5

    def part(first: int, last: int) -> Part:
        images = np.concatenate([images[first:last] for images in by_class.values()])
        labels = np.repeat(np.arange(len(by_class), dtype="int32"), last - first)
        return images, labels

    cuts = (0, *itertools.accumulate(SHARES.sizes(5 * fifths)))
    train, validation, test = (part(first, last) for first, last in itertools.pairwise(cuts))
    return Examples(name, train, validation, test, tuple(by_class), skipped)


CLASSES = 2
CLASS_AND_NAME = 2  # parts of the path of a file that count


def read_images(
    path: str | Path,
    image_size: int,
    per_class: int,
    on_progress: Progress = untold,
    least: int | None = None,
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read the first readable images of two classes, in the order of their numbers.

    Returns a tuple. First a dictionary from class to uint8 images of shape `(n, image_size,
    image_size, 3)`, where `n` is `per_class`, or the size of the smallest class. Then the names of
    the files that were reached and could not be read.

    Example:
    ```python
    images, skipped = read_images("PetImages", image_size=64, per_class=1000)
    ```
    """
    path, skipped = Path(path), list[str]()
    found: dict[str, np.ndarray] = {}
    root = path / "PetImages" if (path / "PetImages").is_dir() else path
    with opened(root, CLASS_AND_NAME) as entries:
        by_class = by_folder([entry.below(CLASS_AND_NAME) for entry in entries], 0)
        if len(by_class) != CLASSES:
            raise DataError(
                f"{path} must hold {CLASSES} folders of images, one per class",
                f"{sorted(by_class) or 'no images'}",
                "Pass a folder that holds one folder of photographs per class",
            )
        for label, files in sorted(by_class.items()):
            pixels = np.empty((min(per_class, len(files)), image_size, image_size, 3), "uint8")
            files, before = sorted(files, key=natural), len(found) * per_class
            count = filled(pixels, files, skipped, on_progress, before)
            found[label] = pixels[:count]
    least = per_class if least is None else least
    few = {label: len(images) for label, images in found.items() if len(images) < least}
    if few:
        received = ", ".join(f"{count} of {label}" for label, count in few.items())
        if skipped:
            received += f"; {len(skipped)} files could not be read"
        raise DataError(
            f"{path} must hold {least} readable images of each class",
            received,
            "Add images, or pass another folder",
        )
    smallest = min(map(len, found.values()))
    return {label: images[:smallest] for label, images in found.items()}, tuple(skipped)


@dataclass(frozen=True)
class CaseStudyPictures:
    """The pictures that `kbatch cats-vs-dogs` names; see `kbatch.data.sources.NamedData`."""

    data: str
    image_size: int
    seed: int
    images = True
    classes = ()
    total = CLASSES * PER_CLASS

    @property
    def form(self) -> Form:
        """The form of a picture."""
        return Form((self.image_size, self.image_size, CHANNELS), "uint8")

    def load(self, on_progress: Progress) -> Examples:
        """Return the pictures; see `kbatch.data.sources.NamedData`."""
        return pictures(self.data, self.image_size, self.seed, on_progress)


DRAWN, TFDS = "drawn", "tfds"
MUST = "--data must be 'drawn', 'tfds', or a folder or zip of photographs"


def check(source: str) -> None:
    """Refuse a text that cannot be a source of pictures, before anything slow begins."""
    if source in (DRAWN, TFDS):
        return
    path = Path(source)
    try:
        there = path.is_dir() or path.is_file()
        odd = not there and path.exists()
    except OSError as error:  # such as for a name that is too long
        raise DataError(MUST, f"{error.strerror}", "Check the path") from error
    if odd:
        raise DataError(MUST, f"{source}, a pipe or a device", "Check the path")
    if not there:
        raise DataError(f"{MUST} that exists", source, "Check the path")


def pictures(
    source: str, image_size: int, seed: int = 0, on_progress: Progress = untold
) -> Examples:
    """Return 2,000 pictures of cats and dogs, or the photographs of two classes in a folder."""
    check(source)
    try:
        if source == DRAWN:
            return split(
                "2,000 cats and dogs drawn by code (no photographs)",
                drawn_pets(PER_CLASS, image_size, seed, on_progress),
            )
        if source == TFDS:
            return split(
                "2,000 photographs of TFDS cats_vs_dogs", from_tfds(image_size, on_progress)
            )
        images, skipped = read_images(
            source, image_size, PER_CLASS, on_progress=on_progress, least=LEAST_PER_CLASS
        )
    except MemoryError as error:
        raise DataError(
            "The pictures must fit into memory", f"--image-size {image_size}", "Pass a smaller one"
        ) from error
    except OSError as error:
        raise DataError(
            "--data must be a folder that can be read", f"{error}", "Check the path"
        ) from error
    count = sum(map(len, images.values()))
    return split(f"{count:,} photographs of {Path(source).name}", images, skipped)


def from_tfds(image_size: int, on_progress: Progress = untold) -> dict[str, np.ndarray]:
    """Return the first 1,000 cats and dogs of TFDS `cats_vs_dogs`, downloaded if missing."""
    source = tfds.look("cats_vs_dogs", image_size, SHARES, 0)
    return source.first(PER_CLASS, on_progress)
