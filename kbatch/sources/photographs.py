"""Photographs in a folder or a zip, found with their paths and read as RGB images."""

from __future__ import annotations

import functools
import io
import os
import re
import stat
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from kbatch.errors import DataError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
# Pillow has decoders that start other programs, such as Ghostscript for EPS: these only compute.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")
MOST_PIXELS = 100_000_000  # of one picture, whose pixels take 300 MB; chosen by hand
LONGEST_NAME = 255  # characters of a file's or folder's name, as on a disk
LARGEST_BYTES = 1 << 28  # no photograph is larger, and a machine holds few files of that size


class PictureSizeError(OSError):
    """A picture whose pixels would take too much memory."""


@dataclass(frozen=True)
class Entry:
    """One image file.

    Attributes:
        parts: Tuple of strings, its path below the folder or in the zip.
        read: Function that returns its bytes.
    """

    parts: tuple[str, ...]
    read: Callable[[], bytes]

    @property
    def label(self) -> str:
        """The name of its folder; empty without one."""
        return self.parts[-2] if len(self.parts) > 1 else ""

    @property
    def name(self) -> str:
        """Its path as a terminal and a report can show it."""
        return shown("/".join(self.parts))

    def unreadable(self, error: Exception) -> str:
        """Its name among those that could not be read, with the reason where only that tells."""
        return f"{self.name} ({error})" if isinstance(error, PictureSizeError) else self.name


def decode(content: bytes, image_size: int) -> np.ndarray:
    """Return an image file's bytes as RGB pixels, whatever its ending and colours are.

    Args:
        content: The file's bytes.
        image_size: Integer, height and width in pixels of the result.

    Raises:
        OSError: If it is not an image of `FORMATS`, has more than `MOST_PIXELS`, or is not whole.
    """
    with _image(content) as image:
        if image.width * image.height > MOST_PIXELS:
            raise PictureSizeError(
                f"{image.width} x {image.height} pixels, at most {MOST_PIXELS:,}"
            )
        image.load()
        return np.asarray(
            image.convert("RGB").resize((image_size, image_size), Image.Resampling.BILINEAR),
            "uint8",
        )


def _image(content: bytes) -> Image.Image:
    try:
        with warnings.catch_warnings():  # Pillow warns from 89 million pixels on
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError as error:  # Pillow's own limit, which is higher
        raise PictureSizeError(f"at most {MOST_PIXELS:,} pixels: {error}") from error


@contextmanager
def opened(path: Path, depth: int) -> Iterator[list[Entry]]:
    """Open a folder or a zip, and give its image files, which can be read until it is closed.

    Args:
        path: The folder, or the zip.
        depth: Integer, the most parts of the path of a file in a folder.

    Raises:
        DataError: If it is neither, or a zip that is broken.
    """
    if path.is_dir():
        yield list(_in_folder(path, (), depth, set()))
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


def _in_folder(
    folder: Path, parts: tuple[str, ...], depth: int, above: set[tuple[int, int]]
) -> Iterator[Entry]:
    """The image files below a folder; a link to a folder above it is not followed."""
    known = folder.stat()
    if (known.st_dev, known.st_ino) in above:
        return
    above = above | {(known.st_dev, known.st_ino)}
    for name in sorted(os.listdir(folder)):
        below = (*parts, text_of(name))
        if Path(name).suffix.lower() in ENDINGS:
            yield Entry(below, functools.partial(_regular, folder / name))
        elif len(below) < depth and os.path.isdir(folder / name):
            yield from _in_folder(folder / name, below, depth, above)


def text_of(name: str) -> str:
    """Return a name of a file as text; without UTF-8, Python gives its bytes one by one."""
    try:
        return os.fsencode(name).decode("utf-8")
    except UnicodeError:  # no UTF-8, which `shown` makes readable
        return name


def name_of(text: str) -> str:
    """Return the name by which Python opens a file; see `text_of`."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


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


def shown(name: str) -> str:
    """Return a file's name without letters that a terminal or a report cannot show."""
    return "".join(
        letter if letter.isprintable() else letter.encode("utf-8", "surrogatepass").hex()
        for letter in name
    )


def _zipped(archive: zipfile.ZipFile) -> Iterator[Entry]:
    """The image files of a zip."""
    for name in archive.namelist():
        if Path(name).suffix.lower() not in ENDINGS:
            continue
        parts = Path(name).parts
        longest = max(map(len, parts))
        if longest > LONGEST_NAME:
            raise DataError(
                f"Names in a zip must have at most {LONGEST_NAME} characters, as on a disk",
                f"one of {longest:,}",
                "Give the file or folder a shorter name, and zip anew",
            )
        yield Entry(parts, functools.partial(_unzipped, archive, name))


def natural(entry: Entry) -> tuple[int, str]:
    """Return the key of the order: files with numbers by their number, others after by name."""
    digits = re.fullmatch(r"(\d+)", Path(entry.parts[-1]).stem)
    return (int(digits[1]) if digits else 1 << 60, "/".join(entry.parts))
