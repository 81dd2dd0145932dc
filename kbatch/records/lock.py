"""Lock: one process at a time trains in a project. It is the system's own lock on an open file, and so dies with its process."""

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
from kbatch.records import atomic_file, disk

FILE = "lock"
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
FAR = 1 << 30  # Windows locks bytes against reading too: one that is behind the words


@dataclass
class _Held:
    """A file that this process has locked, and how many want it so."""

    handle: int
    holders: int = 0


_OURS: dict[tuple[int, int], _Held] = {}  # by device and inode


class Lock:
    """A folder of records that no other process may write, from now on until `release`, or until this object or the process is gone.

    A process may hold a folder many times over: a notebook's cell that runs again does not lock
    itself out.

    Args:
        folder: Folder of the records; made if it does not exist.

    Attributes:
        fresh: Boolean, whether this process did not hold the folder before: another one may have
            written meanwhile.

    Raises:
        RecordError: If another process holds it; the message says which, and since when.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o666)
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
        """Let other processes have the folder, as far as this holder is concerned; a second time does nothing."""
        self._let_go()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _take(handle: int, path: Path) -> None:
    """Lock an open file, and write who has it into it; for people only."""
    try:
        _system_lock(handle)
    except OSError as error:
        if error.errno in NO_LOCKS:
            warnings.warn(
                f"{path.parent} is on a file system without locks: let one process at a time search in it",
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
    with contextlib.suppress(OSError):  # a full disk has room for no words, but the lock holds
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
        words = json.loads(atomic_file.read(path) or b"")
        return f"process {words['process']} on {words['host']} has {path.parent} since {words['since']}"
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
    """In a forked child the lock is the parent's: kept open here, it would outlive it."""
    for held in _OURS.values():
        os.close(held.handle)
    _OURS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
