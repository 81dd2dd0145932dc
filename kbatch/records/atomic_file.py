"""Files that are read whole or refused, and written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from kbatch.errors import RecordError
from kbatch.records import disk

KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def read(path: Path) -> bytes | None:
    """Read a regular file; `None` if there is no file.

    A pipe or a device is refused before anything is read from it, since reading may never end.

    Args:
        path: `Path` of the file.

    Raises:
        RecordError: If the path is not a regular file, or cannot be read.
    """
    try:
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        names = [words for is_one, words in KINDS if is_one(mode)]
        raise _unreadable(path, names[0] if names else "no regular file")
    try:
        with open(handle, "rb") as file:
            return file.read()
    except (OSError, MemoryError) as error:
        raise _unreadable(path, str(error) or type(error).__name__) from error


def _unreadable(path: Path, received: str) -> RecordError:
    return RecordError(
        f"{path} must be a file that can be read", received, "Move it away, or pass another folder"
    )


def write(path: Path, content: str | bytes) -> None:
    """Replace a file, synced to the disk; never leave half a file.

    Args:
        path: `Path` of the file, in a folder that exists.
        content: String or bytes to write; a string is written as UTF-8.

    Raises:
        RecordError: If the disk is full, or the file cannot be written. The old file is then still
            there.
    """
    half = path.with_name(path.name + ".tmp")
    try:
        half.unlink(missing_ok=True)  # a killed process may have left one
        with half.open("xb") as file:
            file.write(
                content
                if isinstance(content, bytes)
                else content.encode("utf-8", "backslashreplace")
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)
        raise disk.refusal(error, path) from error
