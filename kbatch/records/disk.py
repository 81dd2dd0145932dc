"""Errors of the disk: full, a file that may not grow, or a folder that may not be written."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from kbatch.errors import RecordError

# HDF5 and TensorFlow raise errors of their own classes, but keep the words of the system's error
FULL = (errno.ENOSPC, errno.EDQUOT)
LIMITED = (errno.EFBIG,)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
WORDS = re.compile(
    "|".join(re.escape(os.strerror(number)) for number in (*FULL, *LIMITED, errno.EROFS))
)

KEPT = "finished trainings are kept, and the same call goes on"


def trouble(error: BaseException) -> RecordError | None:
    """Return the error to raise for a full or closed disk, whichever library reported it.

    Args:
        error: Any exception; its causes and contexts are searched too.

    Returns:
        A `RecordError`, or `None` if the error has nothing to do with the disk.

    Example:
    >>> print(trouble(OSError(28, "No space left on device", "weights.h5")))  # doctest: +ELLIPSIS
    The disk must have room. Received: No space left on device: weights.h5. Free some; finished...
    """
    for link in _chain(error):
        number = link.errno if isinstance(link, OSError) else None
        found = WORDS.search(str(link))
        if number not in (*FULL, *LIMITED, errno.EROFS):
            number = _number(found[0]) if found else None
        if number is not None:
            named = getattr(link, "filename", None) or next(
                iter(re.findall(r"filename = '([^']+)'", str(link))), None
            )
            return refusal(OSError(number, os.strerror(number), named))
    return None


def refusal(error: OSError, path: object = None) -> RecordError:
    """Return the error to raise for a file or folder that could not be written.

    Args:
        error: `OSError` of the system.
        path: Path of the file, if the error does not name it. Optional.
    """
    name = path if path is not None else error.filename
    said = (error.strerror or str(error)) + (f": {name}" if name is not None else "")
    if error.errno in FULL:
        return RecordError("The disk must have room", said, f"Free some; {KEPT}")
    if error.errno in LIMITED:
        return RecordError(
            "Files must be allowed to grow", said, f"Raise the limit (ulimit -f); {KEPT}"
        )
    if error.errno in CLOSED:
        return RecordError(
            "The folder must be writable", said, "Pass another folder, or let this one be written"
        )
    return RecordError("The file must be writable", said, "Move it away, or pass another folder")


def check_room(folder: Path, needed_bytes: int) -> None:
    """Refuse to start a training whose weights the disk has no room for.

    HDF5 may end the process when it cannot write a file.

    Args:
        folder: `Path` of the folder for the weights.
        needed_bytes: Integer, bytes that the weights may take.

    Raises:
        RecordError: If fewer bytes are free.
    """
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        said = f"{free / 1e6:,.1f} MB free in {folder}, and {needed_bytes / 1e6:,.1f} MB needed"
        raise RecordError("The disk must have room for the weights", said, f"Free some; {KEPT}")


def _number(words: str) -> int:
    return next(number for number in (*FULL, *LIMITED, errno.EROFS) if os.strerror(number) == words)


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        yield link
        seen.add(id(link))
        link = link.__cause__ or link.__context__
