"""Images: photographs in a folder or zip laid out by class, read as RGB; what cannot be read is named and skipped."""

from __future__ import annotations

import functools
import io
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from kbatch.errors import DataError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
LARGEST_BYTES = 1 << 28  # of one file: no photograph, and more than a machine has many times over


@dataclass(frozen=True)
class Entry:
    """One image file: its class, its name, and how to read its bytes."""

    label: str
    name: str
    read: Callable[[], bytes]


def read_images(
    path: str | Path,
    image_size: int,
    per_class: int,
    classes: int = 2,
    on_progress: Callable[[int], None] | None = None,
    least: int | None = None,
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The first readable images of each class, in the order of their numbers.

    Args:
        path: A folder with one folder per class (or a `PetImages` folder with them), or a zip of
            one. Files whose ending is not an image's are ignored; what is no regular file, such as
            a pipe or a device, is not opened.
        image_size: Integer, height and width in pixels that every image is resized to.
        per_class: Integer, images wanted of each class.
        classes: Integer, classes there must be. Defaults to `2`.
        on_progress: Function called with the number of images read so far. Optional.
        least: Integer, images of each class that are enough. Defaults to `per_class`.

    Returns:
        A dictionary from class to uint8 images of shape `(n, image_size, image_size, 3)`, where `n`
        is `per_class`, or what the smallest class has if that is fewer and enough; and the names of
        the files, among all of those classes, that were reached and could not be read.

    Raises:
        DataError: If the folder is missing, holds other classes, or too few readable images.

    Example:
    ```python
    images, skipped = read_images("PetImages", image_size=64, per_class=1000)
    ```
    """
    with _open(Path(path)) as entries:
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
                sorted(by_class[label], key=_natural),
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
        received = ", ".join(f"{count} of {label}" for label, count in few.items()) + (
            f"; {len(skipped)} files could not be read" if skipped else ""
        )
        raise DataError(
            f"{path} must hold {least} readable images of each class",
            received,
            "Add images, or pass another folder",
        )
    smallest = min(map(len, found.values()))
    return {label: images[:smallest] for label, images in found.items()}, tuple(skipped)


def decode(content: bytes, image_size: int) -> np.ndarray:
    """An image file's bytes as RGB pixels, whatever its ending and colours say.

    Args:
        content: The file's bytes.
        image_size: Integer, height and width in pixels it is resized to.

    Raises:
        OSError: If it is no image, or not a whole one.
    """
    with Image.open(io.BytesIO(content)) as image:
        image.load()
        return np.asarray(
            image.convert("RGB").resize((image_size, image_size), Image.Resampling.BILINEAR),
            "uint8",
        )


def _read_class(
    entries: list[Entry],
    image_size: int,
    wanted: int,
    before: int,
    on_progress: Callable[[int], None] | None,
) -> tuple[np.ndarray, list[str]]:
    """Read until there are enough; of a class with few files more than wanted, all are looked at and named if bad."""
    images: list[np.ndarray] = []
    skipped = []
    for entry in entries:
        if len(images) == wanted and len(entries) > 2 * wanted:
            break
        try:
            pixels = decode(entry.read(), image_size)
            images += [pixels] if len(images) < wanted else []
        except Exception:  # decoders raise whatever comes of broken bytes
            skipped.append(_shown(entry.name))
        if on_progress:
            on_progress(before + len(images))
    return np.array(images, "uint8").reshape(-1, image_size, image_size, 3), skipped


@contextmanager
def _open(path: Path) -> Iterator[list[Entry]]:
    """The image files of a folder or of a zip."""
    if path.is_dir():
        root = path / "PetImages" if (path / "PetImages").is_dir() else path
        files = [file for file in root.glob("*/*") if file.suffix.lower() in ENDINGS]
        yield [
            Entry(
                file.parent.name,
                f"{file.parent.name}/{file.name}",
                functools.partial(_regular, file),
            )
            for file in files
        ]
    elif path.is_file() and zipfile.is_zipfile(path):
        try:
            archive = zipfile.ZipFile(path)
        except (OSError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
            raise DataError(
                "A zip of photographs must be whole", f"{path}: {error}", "Download it again"
            ) from error
        with archive:
            yield list(_zipped(archive))
    else:
        raise DataError(
            "Photographs must be in a folder or a zip",
            f"{path} is neither",
            "Pass a folder with one folder of photographs per class",
        )


def _regular(file: Path) -> bytes:
    """The bytes of a regular file; a pipe or a device would be read without an end."""
    with open(
        os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb"
    ) as opened:
        known = os.fstat(opened.fileno())
        if not stat.S_ISREG(known.st_mode) or known.st_size > LARGEST_BYTES:
            raise OSError(f"{file} is no photograph")
        return opened.read(LARGEST_BYTES)


def _unzipped(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > LARGEST_BYTES:
        raise OSError(f"{name} is no photograph")
    return archive.read(name)


def _shown(name: str) -> str:
    """A file's name as a terminal and a report can show it."""
    return "".join(
        letter if letter.isprintable() else letter.encode("utf-8", "surrogatepass").hex()
        for letter in name
    )


def _zipped(archive: zipfile.ZipFile) -> Iterator[Entry]:
    for name in archive.namelist():
        parts = Path(name).parts
        if len(parts) >= 2 and Path(name).suffix.lower() in ENDINGS:
            yield Entry(
                parts[-2], f"{parts[-2]}/{parts[-1]}", functools.partial(_unzipped, archive, name)
            )


def _natural(entry: Entry) -> tuple[int, str]:
    """Files with numbers by their number, others after them by name."""
    digits = re.fullmatch(r"(\d+)", Path(entry.name).stem)
    return (int(digits[1]) if digits else 1 << 60, entry.name)
