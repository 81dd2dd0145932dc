"""Pictures of any number of classes, in a folder or a zip, decoded once into memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kbatch.errors import DataError
from kbatch.sources import room
from kbatch.sources.class_folders import (
    HIDDEN,
    TEST,
    TRAIN,
    VALIDATION,
    WHOLE,
    ByClass,
    ClassFolders,
    class_folders,
    words_of,
)
from kbatch.sources.examples import Examples, Form, Part, Progress
from kbatch.sources.photographs import decode, name_of, opened, shown, text_of
from kbatch.sources.shares import FEW, Shares, stratified

DEPTH = 6  # parts of a path: folders around the classes, a part, a class, folders in it, the file
IMAGE_SIZE = 64  # pixels, if nobody says
CHANNELS = 3


@dataclass(frozen=True)
class PictureSource:
    """A folder or a zip of class folders; see `kbatch.sources.source.Source`.

    Attributes:
        path: The folder or the zip.
        image_size: Integer, height and width in pixels.
        shares: `Shares` of pictures that are not split yet.
        seed: Integer, the seed of the split.
        folders: What a first look found.
    """

    path: Path
    image_size: int
    shares: Shares
    seed: int
    folders: ClassFolders
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
        """Return the pictures; see `kbatch.sources.source.Source`."""
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
        train, validation, test = self._parts(read)
        name = (
            f"{count:,} pictures of {len(self.classes)} classes ({words_of(self.classes)}) "
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
            for entry in by_class.get(label, ()):
                try:
                    pixels[place] = decode(entry.read(), self.image_size)
                except Exception as error:  # decoders raise errors of any kind on broken bytes
                    skipped.append(entry.unreadable(error))
                    continue
                labels[place] = number
                place += 1
                on_progress(before + place)
        return pixels[:place], labels[:place]

    def _check_readable(self, read: dict[str, Part], skipped: list[str]) -> None:
        """Refuse a class with too few readable pictures, and a part without any."""
        first = next(iter(read))
        least = _least(read.keys(), self.shares)
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

    def _parts(self, read: dict[str, Part]) -> tuple[Part, Part, Part | None]:
        """Training, validation and test set, split where the folders are not."""
        if WHOLE in read:
            pixels, labels = read.pop(WHOLE)
            cuts = stratified(labels, self.shares, self.seed)
            train, validation, test = ((pixels[cut], labels[cut]) for cut in cuts)
            return train, validation, test if len(test[1]) else None
        if VALIDATION in read:
            return read[TRAIN], read[VALIDATION], read.get(TEST)
        pixels, labels = read[TRAIN]
        shares = self.shares.without_test() if TEST in read else self.shares
        cuts = stratified(labels, shares, self.seed)
        train, validation, test = ((pixels[cut], labels[cut]) for cut in cuts)
        return train, validation, read.get(TEST, test if len(test[1]) else None)

    def _notes(self, validated: int) -> list[str]:
        """What was left out, and what is few."""
        notes = []
        if self.folders.outside:
            notes.append(
                f"Pictures that lie in no class folder are left out: {self.folders.outside}."
            )
        empty = self._folders_without_pictures()
        if empty:
            notes.append(f"Folders without pictures are no classes: {words_of(empty)}.")
        if validated < FEW:
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
    """Find the pictures of a folder or a zip, without reading them.

    Args:
        path: The folder or the zip.
        image_size: Integer, height and width in pixels.
        shares: `Shares` of pictures that are not split yet.
        seed: Integer, the seed of the split.

    Raises:
        DataError: If there are fewer than two classes, too few pictures of one, or more pictures
            than fit into memory.
    """
    try:
        with opened(path, DEPTH) as entries:
            folders = class_folders(entries, str(path))
    except OSError as error:
        raise _unreadable(error) from error
    first = next(iter(folders.parts.values()))
    _check_counts(
        {name: len(found) for name, found in first.items()},
        _least(folders.parts.keys(), shares),
        path,
        0,
    )
    room.check(
        folders.pictures * image_size * image_size * CHANNELS,
        f"{folders.pictures:,} pictures of {image_size} px",
        "Pass a smaller --image-size, or a folder with fewer pictures",
    )
    return PictureSource(path, image_size, shares, seed, folders)


def _least(parts: object, shares: Shares) -> int:
    """The fewest pictures of a class to train on, of which some may be split off."""
    names = set(parts)  # type: ignore[call-overload]
    if VALIDATION in names:
        return 1
    return shares.without_test().least if TEST in names else shares.least


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
