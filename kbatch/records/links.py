"""Symbolic links and pipes in the folder of a search: nothing is written or read through one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kbatch.errors import RecordError
from kbatch.records import disk


def check_below(folder: Path) -> None:
    """Refuse a folder with a link, a pipe or a device anywhere below it.

    The folder itself may be a link. Whoever wrote the folder chose where its links lead, such as to
    a file of yours that the next record would overwrite; and reading a pipe may never end.

    Args:
        folder: `Path` of a project; nothing is there yet if it is new.

    Raises:
        RecordError: If there is one; it names the first.
    """
    for entry in _no_files(str(folder)):
        if entry.is_symlink():
            raise _refused(entry.path)
        raise RecordError(
            "A folder of results must hold files and folders only",
            f"{entry.path}, a pipe or a device",
            "Remove it, or take another folder",
        )


def check_itself(path: Path) -> None:
    """Refuse a link in the place of a file or folder.

    Args:
        path: `Path` in a folder that may come from someone else.

    Raises:
        RecordError: If it is a link.
    """
    if path.is_symlink():
        raise _refused(str(path))


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


def _no_files(folder: str) -> Iterator[os.DirEntry[str]]:
    """What is neither a file nor a folder, below a folder; links are not followed."""
    below = [folder]
    while below:
        for entry in _entries(below.pop()):
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
            elif not entry.is_file(follow_symlinks=False):
                yield entry


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
