"""Pictures: a folder or a zip with a folder of photographs for each class."""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import re
import stat
import warnings
import zipfile
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from kbatch.data import examples
from kbatch.data.examples import (
    FEW_TO_VALIDATE,
    PARTS,
    TEST,
    TRAIN,
    VALIDATION,
    WHOLE,
    Examples,
    Form,
    Part,
    Progress,
    Shares,
    parted,
)
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
    """One image file."""

    parts: tuple[str, ...]  # its path below the folder or in the zip
    read: Callable[[], bytes]

    @property
    def name(self) -> str:
        """Its path as a terminal and a report can show it."""
        return shown("/".join(self.parts))

    def below(self, count: int) -> Entry:
        """Return it with the last parts of its path only."""
        return dataclasses.replace(self, parts=self.parts[-count:])

    def unreadable(self, error: Exception) -> str:
        """Its name among those that could not be read, with the reason where only that tells."""
        return f"{self.name} ({error})" if isinstance(error, PictureSizeError) else self.name


def decode(content: bytes, image_size: int) -> np.ndarray:
    """Return an image file's bytes as RGB pixels, whatever its ending and colours are."""
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
    """Open a folder or a zip, and give its image files, which can be read until it is closed."""
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


def filled(
    pixels: np.ndarray,
    entries: Sequence[Entry],
    skipped: list[str],
    on_progress: Progress,
    before: int = 0,
) -> int:
    """Decode pictures into the rows of an array until it is full, and return how many they are.

    Files that cannot be read are added to the skipped ones. Of fewer than twice as many files as
    rows all are tried, so that all bad ones are named.
    """
    most, place = len(pixels), 0
    for entry in entries:
        if place == most and len(entries) > 2 * most:
            break
        try:
            decoded = decode(entry.read(), pixels.shape[1])
        except Exception as error:  # decoders raise errors of any kind on broken bytes
            skipped.append(entry.unreadable(error))
            continue
        if place < most:
            pixels[place] = decoded
            place += 1
            on_progress(before + place)
    return place


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


HIDDEN = (".", "__MACOSX")  # beginnings of names
ByClass = dict[str, list[Entry]]


@dataclass(frozen=True)
class ClassFolders:
    """The pictures of a folder or a zip."""

    # dictionary from part (`train`, `validation`, `test`, or empty for pictures that are not split
    # yet) to a dictionary from class to its pictures
    parts: dict[str, ByClass]
    above: tuple[str, ...]  # names of the folders that lie around those
    tops: tuple[str, ...]  # names of the folders in the innermost of them: classes, or parts
    outside: int  # how many pictures lie in no class folder

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their numbers."""
        return tuple(sorted(next(iter(self.parts.values()))))

    @property
    def pictures(self) -> int:
        """The number of pictures."""
        return sum(len(entries) for part in self.parts.values() for entries in part.values())


def class_folders(entries: Sequence[Entry], path: str) -> ClassFolders:
    """Sort pictures by part and class. Hidden files are left out."""
    visible = sorted((entry for entry in entries if _is_visible(entry)), key=natural)
    above = _wrapper(visible)
    inside = [entry for entry in visible if len(entry.parts) > len(above) + 1]
    tops = {entry.parts[len(above)] for entry in inside}
    named = {top: PARTS.get(top.lower(), WHOLE) for top in sorted(tops)}
    if TRAIN in named.values() and WHOLE not in named.values():
        parts = _split(inside, len(above), named, path)
    else:
        _check_classes(inside, len(above), named, path)
        parts = {WHOLE: by_folder(inside, len(above))}
    sorted_in = sum(len(found) for by_class in parts.values() for found in by_class.values())
    folders = ClassFolders(parts, above, tuple(named), len(visible) - sorted_in)
    _check_folders(folders, path)
    return folders


def words_of_classes(classes: Sequence[str]) -> str:
    """Return the names of classes in words, of many classes the first ones.

    Example:
    >>> words_of_classes(["a", "b"]), words_of_classes(list("abcdefghij"))
    ('a, b', 'a, b, c, d, e, f, …')
    """
    most = 6
    return ", ".join([*map(shown, classes[:most]), *(["…"] if len(classes) > most else [])])


def _is_visible(entry: Entry) -> bool:
    return not any(part.startswith(HIDDEN) for part in entry.parts)


def _wrapper(entries: Sequence[Entry]) -> tuple[str, ...]:
    """The folders that hold nothing but one other, such as the one that a zip begins with."""
    above: tuple[str, ...] = ()
    while True:
        inside = [entry for entry in entries if len(entry.parts) > len(above) + 1]
        tops = {entry.parts[len(above)] for entry in inside}
        is_class = any(len(entry.parts) == len(above) + 2 for entry in inside)
        if len(tops) != 1 or is_class or min(tops).lower() in PARTS:
            return above
        above = (*above, *tops)


def by_folder(entries: Sequence[Entry], depth: int) -> ByClass:
    """The pictures by the name of the folder at a depth."""
    by_class: ByClass = {}
    for entry in entries:
        if len(entry.parts) > depth + 1:
            by_class.setdefault(entry.parts[depth], []).append(entry)
    return by_class


def _check_classes(entries: Sequence[Entry], depth: int, named: dict[str, str], path: str) -> None:
    """Refuse folders that look like parts of the data: each would be trained on as a class.

    A folder looks like a part if it bears a part's name, or the same two folders as another one,
    and holds no pictures itself.
    """
    own = {entry.parts[depth] for entry in entries if len(entry.parts) == depth + 2}
    within: dict[str, set[str]] = {top: set() for top in named if top not in own}
    for entry in entries:
        if entry.parts[depth] in within:
            within[entry.parts[depth]].add(entry.parts[depth + 1])
    alike = [top for top, inner in within.items() if _has_twin(inner, top, within)]
    parts = [top for top in within if named[top] != WHOLE and len(within[top]) > 1]
    if parts or alike:
        raise DataError(
            f"{path} must hold one folder of pictures per class, or {TRAIN}, {VALIDATION} and "
            f"{TEST} with such folders in each and nothing else",
            f"{words_of_classes(sorted(named))}; {words_of_classes(sorted({*parts, *alike}))} hold "
            "folders of classes",
            f"Rename parts to {TRAIN}, {VALIDATION} and {TEST} and take other folders out; or, if "
            "these are classes, lay their pictures right into them",
        )


def _has_twin(inner: set[str], top: str, within: dict[str, set[str]]) -> bool:
    """Whether another folder holds the same folders, two or more."""
    others = [found for name, found in within.items() if name != top]
    return len(inner) > 1 and inner in others


def _split(
    entries: Sequence[Entry], depth: int, named: dict[str, str], path: str
) -> dict[str, ByClass]:
    """The pictures by part and class, of folders such as `train` and `val`."""
    if len(set(named.values())) < len(named):
        raise DataError(
            f"{path} must hold one folder of each part: train, validation and test",
            ", ".join(named),
            "Leave one of the same part out",
        )
    return {
        part: by_folder([entry for entry in entries if entry.parts[depth] == top], depth + 1)
        for top, part in sorted(named.items(), key=lambda each: list(PARTS.values()).index(each[1]))
    }


def _check_folders(folders: ClassFolders, path: str) -> None:
    """Refuse fewer than two classes, and parts with classes that are not trained on."""
    if len(folders.classes) < 2:
        found = words_of_classes(folders.classes) or "no folder of pictures"
        one = f"one folder of pictures, {found}" if folders.classes else found
        within = f", in its folder {TRAIN}" if TRAIN in folders.parts else ""
        raise DataError(
            f"{path} must hold at least two folders of pictures, one per class{within}",
            one,
            "Pass a folder that holds one folder of pictures per class",
        )
    for part, by_class in folders.parts.items():
        unknown = sorted(by_class.keys() - set(folders.classes))
        if unknown or not by_class:
            raise DataError(
                f"The part {part} of {path} must hold classes that the part {TRAIN} has",
                words_of_classes(unknown) or "no class folder with pictures",
                "Add their pictures there, or take them out here",
            )


DEPTH = 6  # parts of a path: folders around the classes, a part, a class, folders in it, the file
IMAGE_SIZE = 64  # pixels, if nobody says
CHANNELS = 3


@dataclass(frozen=True)
class PictureSource:
    """A folder or a zip of class folders; see `kbatch.data.sources.NamedData`."""

    path: Path  # the folder or the zip
    image_size: int  # height and width in pixels
    shares: Shares  # of pictures that are not split yet
    seed: int
    folders: ClassFolders  # what a first look found
    images = True

    @property
    def total(self) -> int:
        """The number of pictures."""
        return self.folders.pictures

    @property
    def form(self) -> Form:
        """The form of a picture."""
        return Form((self.image_size, self.image_size, CHANNELS), "uint8")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(map(shown, self.folders.classes))

    def load(self, on_progress: Progress) -> Examples:
        """Return the pictures; see `kbatch.data.sources.NamedData`."""
        skipped: list[str] = []
        try:
            with opened(self.path, DEPTH) as entries:
                parts = class_folders(entries, self.path.name).parts
                read: dict[str, Part] = {}
                for name, by_class in parts.items():
                    before = sum(len(labels) for _, labels in read.values())
                    read[name] = self._read(by_class, skipped, before, on_progress)
        except MemoryError as error:
            raise DataError(
                "The pictures must fit into memory",
                f"{self.total:,} pictures of {self.image_size} px",
                "Pass a smaller --image-size",
            ) from error
        except OSError as error:
            raise _unreadable(error) from error
        self._check_readable(read, skipped)
        count = sum(len(labels) for _, labels in read.values())
        train, validation, test = parted(read, self.shares, self.seed, lambda labels, _: labels)
        name = (
            f"{count:,} pictures of {len(self.classes)} classes ({words_of_classes(self.classes)}) "
            f"in {shown(self.path.absolute().name)}"
        )
        notes = tuple(self._notes(len(validation[1])))
        return Examples(name, train, validation, test, self.classes, tuple(skipped), notes)

    def _read(
        self, by_class: ByClass, skipped: list[str], before: int, on_progress: Progress
    ) -> Part:
        """Decode the pictures of a part, and name the files that cannot be read."""
        count = sum(map(len, by_class.values()))
        pixels, labels = np.empty((count, *self.form.shape), "uint8"), np.empty(count, "int32")
        place = 0
        for number, label in enumerate(self.folders.classes):
            entries = by_class.get(label, ())
            rows = pixels[place : place + len(entries)]
            end = place + filled(rows, entries, skipped, on_progress, before + place)
            labels[place:end] = number
            place = end
        return pixels[:place], labels[:place]

    def _check_readable(self, read: dict[str, Part], skipped: list[str]) -> None:
        """Refuse a class with too few readable pictures, and a part without any."""
        first = next(iter(read))
        least = _least(read, self.shares)
        counts = np.bincount(read[first][1], minlength=len(self.classes))
        _check_counts(
            dict(zip(self.classes, counts.tolist(), strict=True)), least, self.path, len(skipped)
        )
        for name, (_, labels) in read.items():
            if not len(labels):
                raise DataError(
                    f"The part {name} of {self.path} must hold readable pictures",
                    f"{len(skipped)} files that could not be read",
                    "Repair them, or take the part away",
                )

    def _notes(self, validated: int) -> list[str]:
        """What was left out, and what is few."""
        notes = []
        if self.folders.outside:
            notes.append(
                f"Pictures that lie in no class folder are left out: {self.folders.outside}."
            )
        empty = self._folders_without_pictures()
        if empty:
            notes.append(f"Folders without pictures are no classes: {words_of_classes(empty)}.")
        if validated < FEW_TO_VALIDATE:
            notes.append(
                f"Only {validated} pictures to validate on: one of them moves an accuracy by "
                f"{1 / validated:.1%}."
            )
        return notes

    def _folders_without_pictures(self) -> list[str]:
        """The names of folders beside the class folders that hold no picture."""
        if not self.path.is_dir():
            return []
        beside = self.path.joinpath(*map(name_of, self.folders.above))
        names = set(map(text_of, os.listdir(beside))) - set(self.folders.tops)
        return [
            name
            for name in sorted(names)
            if (beside / name_of(name)).is_dir() and not name.startswith(HIDDEN)
        ]


def look(path: Path, image_size: int, shares: Shares, seed: int) -> PictureSource:
    """Find the pictures of a folder or a zip, without reading them."""
    try:
        with opened(path, DEPTH) as entries:
            folders = class_folders(entries, str(path))
    except OSError as error:
        raise _unreadable(error) from error
    first = next(iter(folders.parts.values()))
    _check_counts(
        {name: len(found) for name, found in first.items()},
        _least(folders.parts, shares),
        path,
        0,
    )
    examples.check_room(
        folders.pictures * image_size * image_size * CHANNELS,
        f"{folders.pictures:,} pictures of {image_size} px",
        "Pass a smaller --image-size, or a folder with fewer pictures",
    )
    return PictureSource(path, image_size, shares, seed, folders)


def _least(parts: Container[str], shares: Shares) -> int:
    """The fewest pictures of a class to train on, of which some may be split off."""
    return 1 if VALIDATION in parts else shares.beside(parts).least


def _check_counts(counts: dict[str, int], least: int, path: Path, unreadable: int) -> None:
    """Refuse a class with too few pictures."""
    few = [f"{count} of {shown(name)}" for name, count in sorted(counts.items()) if count < least]
    if few:
        bad = f"; {unreadable} files could not be read" if unreadable else ""
        raise DataError(
            f"{path} must hold at least {least} readable pictures of each class",
            f"{', '.join(few)}{bad}",
            "Add pictures, or take the folder of that class out",
        )


def _unreadable(error: OSError) -> DataError:
    return DataError("--data must be a folder that can be read", f"{error}", "Check the path")
