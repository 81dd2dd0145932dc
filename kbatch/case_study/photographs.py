"""The case study's photographs: the same number of each class, in the order of their numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kbatch.data.pictures import Entry, decode, natural, opened
from kbatch.errors import DataError

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

    Args:
        path: A folder with one folder per class (or a `PetImages` folder with them), or a zip of
            one. Files without the ending of an image are ignored. Pipes and devices are not
            opened.
        image_size: Integer, height and width in pixels that every image is resized to.
        per_class: Integer, images of each class.
        classes: Integer, the number of classes. Defaults to `2`.
        on_progress: Function called with the number of images read so far. Optional.
        least: Integer, the fewest images of each class that will do. Defaults to `per_class`.

    Returns:
        A tuple. First a dictionary from class to uint8 images of shape
        `(n, image_size, image_size, 3)`, where `n` is `per_class`, or the size of the smallest
        class. Then the names of the files that were reached and could not be read.

    Raises:
        DataError: If the folder is missing, holds other classes, or too few readable images.

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
