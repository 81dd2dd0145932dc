"""Photographs in a folder or a zip, one folder per class, read as RGB images."""

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
LARGEST_BYTES = 1 << 28  # no photograph is larger, and a machine holds few files of that size


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


def decode(content: bytes, image_size: int) -> np.ndarray:
    """Return an image file's bytes as RGB pixels, whatever its ending and colours are.

    Args:
        content: The file's bytes.
        image_size: Integer, height and width in pixels of the result.

    Raises:
        OSError: If it is not an image, or not a whole one.
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
        except Exception:  # decoders raise errors of any kind on broken bytes
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
    """The bytes of a regular file; reading a pipe or a device might never end."""
    # Windows has no O_NONBLOCK, other systems have no O_BINARY.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(file, flags), "rb") as opened:
        known = os.fstat(opened.fileno())
        if not stat.S_ISREG(known.st_mode) or known.st_size > LARGEST_BYTES:
            raise OSError(f"{file} is no photograph")
        return opened.read(LARGEST_BYTES)


def _unzipped(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a file in a zip."""
    if archive.getinfo(name).file_size > LARGEST_BYTES:
        raise OSError(f"{name} is no photograph")
    return archive.read(name)


def _shown(name: str) -> str:
    """A file's name without letters that a terminal or a report cannot show."""
    return "".join(
        letter if letter.isprintable() else letter.encode("utf-8", "surrogatepass").hex()
        for letter in name
    )


def _zipped(archive: zipfile.ZipFile) -> Iterator[Entry]:
    """The image files of a zip."""
    for name in archive.namelist():
        parts = Path(name).parts
        if len(parts) >= 2 and Path(name).suffix.lower() in ENDINGS:
            yield Entry(
                parts[-2], f"{parts[-2]}/{parts[-1]}", functools.partial(_unzipped, archive, name)
            )


def _natural(entry: Entry) -> tuple[int, str]:
    """The key of the order: files with numbers by their number, others after them by name."""
    digits = re.fullmatch(r"(\d+)", Path(entry.name).stem)
    return (int(digits[1]) if digits else 1 << 60, entry.name)
