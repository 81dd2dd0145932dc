"""The pictures of the case study: cats and dogs drawn, photographed, or from TFDS."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kbatch.data.drawn import drawn_pets
from kbatch.data.examples import Examples, Progress
from kbatch.data.pictures import Entry, decode, natural, opened
from kbatch.errors import DataError

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


CLASS_AND_NAME = 2  # parts of the path of a file that count


def read_images(
    path: str | Path,
    image_size: int,
    per_class: int,
    classes: int = 2,
    on_progress: Callable[[int], None] | None = None,
    least: int | None = None,
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read the first readable images of each class, in the order of their numbers.

    Returns a tuple. First a dictionary from class to uint8 images of shape `(n, image_size,
    image_size, 3)`, where `n` is `per_class`, or the size of the smallest class. Then the names of
    the files that were reached and could not be read.

    Example:
    ```python
    images, skipped = read_images("PetImages", image_size=64, per_class=1000)
    ```
    """
    with _opened(Path(path)) as entries:
        by_class: dict[str, list[Entry]] = {}
        for entry in entries:
            by_class.setdefault(entry.label, []).append(entry)
        if len(by_class) != classes:
            raise DataError(
                f"{path} must hold {classes} folders of images, one per class",
                f"{sorted(by_class) or 'no images'}",
                "Pass a folder that holds one folder of photographs per class",
            )
        found: dict[str, np.ndarray] = {}
        skipped: list[str] = []
        for label in sorted(by_class):
            images, unreadable = _read_class(
                sorted(by_class[label], key=natural),
                image_size,
                per_class,
                len(found) * per_class,
                on_progress,
            )
            found[label] = images
            skipped += unreadable
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


def _read_class(
    entries: list[Entry],
    image_size: int,
    per_class: int,
    before: int,
    on_progress: Callable[[int], None] | None,
) -> tuple[np.ndarray, list[str]]:
    """Read the images of a class, and name the files that cannot be read.

    Of a class with fewer than twice the files, all are tried, so that all bad ones are named.
    """
    images: list[np.ndarray] = []
    skipped = []
    for entry in entries:
        if len(images) == per_class and len(entries) > 2 * per_class:
            break
        try:
            pixels = decode(entry.read(), image_size)
            if len(images) < per_class:
                images.append(pixels)
        except Exception as error:  # decoders raise errors of any kind on broken bytes
            skipped.append(entry.unreadable(error))
        if on_progress:
            on_progress(before + len(images))
    return np.array(images, "uint8").reshape(-1, image_size, image_size, 3), skipped


@contextmanager
def _opened(path: Path) -> Iterator[list[Entry]]:
    """The image files of a folder or of a zip, as class and name."""
    root = path / "PetImages" if (path / "PetImages").is_dir() else path
    with opened(root, CLASS_AND_NAME) as entries:
        yield [
            dataclasses.replace(entry, parts=entry.parts[-CLASS_AND_NAME:])
            for entry in entries
            if len(entry.parts) >= CLASS_AND_NAME
        ]


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
    source: str, image_size: int, seed: int = 0, on_progress: Progress | None = None
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


def from_tfds(image_size: int, on_progress: Progress | None = None) -> dict[str, np.ndarray]:
    """Return the first 1,000 cats and dogs of TFDS `cats_vs_dogs`, which is downloaded if missing.

    Args:
        image_size: Integer, height and width in pixels.
        on_progress: Function called with the number of pictures ready so far. Optional.

    Raises:
        DataError: If TFDS is not installed or cannot prepare the data.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(
            "--data tfds needs tensorflow-datasets",
            "it is not installed",
            "pip install 'keras-kbatch[tfds]'",
        ) from error
    try:
        dataset, info = tfds.load(
            "cats_vs_dogs", split="train", shuffle_files=False, with_info=True
        )
    except Exception as error:  # TFDS raises the errors of its downloader and its file systems
        raise DataError(
            "TFDS must be able to prepare cats_vs_dogs",
            f"{type(error).__name__}: {str(error)[:300]}",
            "Check the network, or pass a folder",
        ) from error
    names = info.features["label"].names
    return collect(tfds.as_numpy(dataset), names, image_size, on_progress)


def collect(
    examples: object, names: list[str], image_size: int, on_progress: Progress | None = None
) -> dict[str, np.ndarray]:
    """Return the first 1,000 images of each class, out of examples of TFDS."""
    from PIL import Image

    by_class: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for example in examples:  # type: ignore[attr-defined]
        images = by_class[names[int(example["label"])]]
        if len(images) < PER_CLASS:
            picture = Image.fromarray(example["image"]).convert("RGB")
            small = picture.resize((image_size, image_size), Image.Resampling.BILINEAR)
            images.append(np.asarray(small, "uint8"))
            if on_progress:
                on_progress(sum(map(len, by_class.values())))
        if all(len(images) == PER_CLASS for images in by_class.values()):
            return {name: np.array(images) for name, images in by_class.items()}
    counts = ", ".join(f"{len(images)} of {name}" for name, images in by_class.items())
    raise DataError(
        f"TFDS must hold {PER_CLASS} images of each class", counts, "Prepare the whole data set"
    )
