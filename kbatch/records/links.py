"""Symbolic links in the folder of a search: nothing is written or read through one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kbatch.errors import RecordError
from kbatch.records import disk


def check_below(folder: Path) -> None:
    """Refuse a folder with a link anywhere below it.

    The folder itself may be one. Whoever wrote the folder chose where its links lead, such as to a
    file of yours that the next record would overwrite.

    Args:
        folder: `Path` of a project; nothing is there yet if it is new.

    Raises:
        RecordError: If there is a link; it names the first.
    """
    for link in _links(str(folder)):
        raise _refused(link)


def check_files(folder: Path, endings: tuple[str, ...]) -> None:
    """Refuse links among the files of a folder that have one of some endings.

    Args:
        folder: `Path` of a folder that may hold other files of the user's.
        endings: Tuple of strings, such as `(".md",)`.

    Raises:
        RecordError: If there is a link; it names the first.
    """
    if not folder.is_dir():
        return
    for name in sorted(os.listdir(folder)):
        if name.endswith(endings) and os.path.islink(folder / name):
            raise _refused(str(folder / name))


def _links(folder: str) -> Iterator[str]:
    """The links below a folder, which are not followed."""
    below = [folder]
    while below:
        for entry in _entries(below.pop()):
            if entry.is_symlink():
                yield entry.path
            elif entry.is_dir(follow_symlinks=False):
                below.append(entry.path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise disk.refusal(error, Path(folder)) from error


def _refused(link: str) -> RecordError:
    return RecordError(
        "A folder of results must hold no links: what is written to one changes another file",
        f"{link} -> {os.readlink(link)}",
        "Put the file itself in its place, or take another folder",
    )
