"""The lock of a project, in which one process at a time may train.

The operating system holds the lock on an open file, and so releases it when the process ends.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import platform
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path

from kbatch.errors import RecordError
from kbatch.plain_text import without_controls
from kbatch.records import atomic_file, disk

FILE = "lock"
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
# neither wait for a pipe nor follow a link, where the system can refuse to
KEPT_OUT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
FAR = 1 << 30  # Windows locks bytes against reading too: lock a byte behind the text


@dataclass
class _Held:
    """A file that this process has locked, and the number of `Lock` objects that hold it."""

    handle: int
    holders: int = 0


_OURS: dict[tuple[int, int], _Held] = {}  # by device and inode


class Lock:
    """A lock on a folder of records, against other processes.

    The lock ends with `release`, with this object or with the process. A process may lock a folder
    several times, so that a notebook cell that runs again does not lock itself out.

    Args:
        folder: `Path` of the folder of records; made if it does not exist.

    Attributes:
        fresh: Boolean, whether this process did not hold the folder before. If so, another process
            may have written to it.

    Raises:
        RecordError: If another process holds the folder; the message says which, and since when.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | KEPT_OUT, 0o666)
        except OSError as error:
            raise disk.refusal(error, path) from error
        stat = os.fstat(handle)
        key = (stat.st_dev, stat.st_ino)
        self.fresh = key not in _OURS
        if self.fresh:
            _take(handle, path)
            _OURS[key] = _Held(handle)
        else:
            os.close(handle)
        _OURS[key].holders += 1
        self._let_go = weakref.finalize(self, _let_go, key)

    def release(self) -> None:
        """Release this lock; a second call does nothing."""
        self._let_go()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def is_held(folder: Path) -> bool:
    """Tell whether a process, this one included, holds the lock of a folder.

    A process that begins to search at this very moment may be refused; it can begin again.

    Args:
        folder: `Path` of the folder of records.
    """
    try:
        handle = os.open(folder / FILE, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
    except OSError:  # no search has begun, or its folder may only be read
        return False
    try:
        _system_lock(handle)
    except OSError as error:
        return error.errno not in NO_LOCKS
    finally:
        os.close(handle)
    return False


def _take(handle: int, path: Path) -> None:
    """Lock an open file, and write into it which process has it, for people to read."""
    try:
        _system_lock(handle)
    except OSError as error:
        if error.errno in NO_LOCKS:
            warnings.warn(
                f"{path.parent} is on a file system without locks: "
                "let one process at a time search in it",
                stacklevel=4,
            )
            return
        os.close(handle)
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK):
            raise RecordError(
                "A project must be searched by one process at a time",
                _holder(path),
                "Wait until it ended, or stop it",
            ) from error
        raise disk.refusal(error, path) from error
    since = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    words = json.dumps({"process": os.getpid(), "host": platform.node(), "since": since})
    with contextlib.suppress(OSError):  # on a full disk the text is lost, but the lock holds
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, words.encode())


def _system_lock(handle: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        os.lseek(handle, FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder(path: Path) -> str:
    with contextlib.suppress(RecordError, ValueError, KeyError, TypeError):
        words = without_controls(json.loads(atomic_file.read(path) or b""))
        process = f"process {words['process']} on {words['host']}"
        return f"{process} has {path.parent} since {words['since']}"
    return f"another process has {path.parent}"


def _let_go(key: tuple[int, int]) -> None:
    held = _OURS.get(key)
    if held is None:  # after a fork
        return
    held.holders -= 1
    if not held.holders:
        del _OURS[key]
        os.close(held.handle)


def _forget() -> None:
    """Close the parent's lock files in a forked child, where they would outlive the parent."""
    for held in _OURS.values():
        os.close(held.handle)
    _OURS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
