"""Files: written whole or not at all, held by one process, and those of KerasTuner."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fnmatch
import json
import math
import os
import platform
import re
import shutil
import stat
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbatch import plain_text
from kbatch.errors import RecordError
from kbatch.plain_text import without_controls

# HDF5 and TensorFlow raise errors of their own classes, but keep the words of the system's error
FULL = (errno.ENOSPC, errno.EDQUOT)
LIMITED = (errno.EFBIG,)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
DISK_WORDS = re.compile(
    "|".join(re.escape(os.strerror(number)) for number in (*FULL, *LIMITED, errno.EROFS))
)

KEPT = "finished trainings are kept, and the same call goes on"


def disk_trouble(error: BaseException) -> RecordError | None:
    """Return the error to raise for a full or closed disk, whichever library reported it.

    Returns a `RecordError`, or `None` if the error has nothing to do with the disk.

    Example:
    >>> error = OSError(28, "No space left on device", "weights.h5")
    >>> print(disk_trouble(error))  # doctest: +ELLIPSIS
    The disk must have room. Received: No space left on device: weights.h5. Free some; finished...
    """
    for link in _causes(error):
        number = link.errno if isinstance(link, OSError) else None
        found = DISK_WORDS.search(str(link))
        if number not in (*FULL, *LIMITED, errno.EROFS):
            number = _errno_of(found[0]) if found else None
        if number is not None:
            named = getattr(link, "filename", None) or next(
                iter(re.findall(r"filename = '([^']+)'", str(link))), None
            )
            return refusal(OSError(number, os.strerror(number), named))
    return None


def refusal(error: OSError, path: object = None) -> RecordError:
    """Return the error to raise for a file or folder that could not be written."""
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
    """
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        said = f"{free / 1e6:,.1f} MB free in {folder}, and {needed_bytes / 1e6:,.1f} MB needed"
        raise RecordError("The disk must have room for the weights", said, f"Free some; {KEPT}")


def _errno_of(words: str) -> int:
    return next(number for number in (*FULL, *LIMITED, errno.EROFS) if os.strerror(number) == words)


def _causes(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        yield link
        seen.add(id(link))
        link = link.__cause__ or link.__context__


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
    """Replace a file, synced to the disk; never leave half a file."""
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
        raise refusal(error, path) from error


def check_no_links(folder: Path) -> None:
    """Refuse a folder with a link, a pipe or a device anywhere below it.

    The folder itself may be a link. Whoever wrote the folder chose where its links lead, such as to
    a file of yours that the next record would overwrite; and reading a pipe may never end.
    """
    for entry in _no_files(str(folder)):
        if entry.is_symlink():
            raise _linked(entry.path)
        raise RecordError(
            "A folder of results must hold files and folders only",
            f"{entry.path}, a pipe or a device",
            "Remove it, or take another folder",
        )


def check_no_link(path: Path) -> None:
    """Refuse a link in the place of a file or folder."""
    if path.is_symlink():
        raise _linked(str(path))


def check_no_linked_files(folder: Path, endings: tuple[str, ...]) -> None:
    """Refuse links among the files of a folder that have one of some endings."""
    if not folder.is_dir():
        return
    for name in sorted(os.listdir(folder)):
        if name.endswith(endings) and os.path.islink(folder / name):
            raise _linked(str(folder / name))


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
        raise refusal(error, Path(folder)) from error


def _linked(link: str) -> RecordError:
    return RecordError(
        "A folder of results must hold no links: what is written to one changes another file",
        f"{link} -> {os.readlink(link)}",
        "Put the file itself in its place, or take another folder",
    )


LOCK_FILE = "lock"
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

    Attributes:
        fresh: Boolean, whether this process did not hold the folder before. If so, another process
            may have written to it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / LOCK_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | KEPT_OUT, 0o666)
        except OSError as error:
            raise refusal(error, path) from error
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


def is_locked(folder: Path) -> bool:
    """Tell whether a process, this one included, holds the lock of a folder.

    A process that begins to search at this very moment may be refused; it can begin again.
    """
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
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
        raise refusal(error, path) from error
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
        words = without_controls(json.loads(read(path) or b""))
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


# The keys of KerasTuner's states and their types, from version 1.4.7 on.
ORACLE: dict[str, Any] = {
    "ongoing_trials": dict[str, str],
    "hyperparameters": dict[str, Any],
    "start_order": list[str],
    "end_order": list[str],
    "run_times": dict[str, int],
    "retry_queue": list[str],
    "seed": int,
    "seed_state": int,
    "tried_so_far": list[str],
    "id_to_hash": dict[str, str | None],
    "display": dict[str, Any],
}
OWN_ORACLE: dict[str, Any] = {  # what kbatch's oracle adds
    "gained": dict[str, float],
    "rungs": dict[str, list[float]],  # in projects of before
    "ended": dict[str, str],
    "varied": list[dict[str, Any]],
}
TRIAL: dict[str, Any] = {
    "trial_id": str,
    "hyperparameters": dict[str, Any],
    "metrics": dict[str, Any],
    "score": float | None,
    "best_step": int | None,
    "status": str,
    "message": str | None,
}


def found(project: Path) -> list[Path]:
    """Return the files with names of KerasTuner's, broken links and folders among them."""
    try:
        names = sorted(os.listdir(project))
    except OSError:
        return []
    own = [
        project / name
        for name in names
        if name == "oracle.json" or fnmatch.fnmatch(name, "tuner*.json")
    ]
    trials = [project / name / "trial.json" for name in names if name.startswith("trial_")]
    return [*own, *(file for file in trials if os.path.lexists(file))]


def first_broken(project: Path) -> Path | None:
    """Return the first file that is not as KerasTuner writes it; `None` if there is none."""
    files = found(project)
    states = {file: _state(file) for file in files}
    for file, state in states.items():
        if state is None:
            return file
    if not files:
        return None
    of_oracle = project / "oracle.json"
    oracle = states.get(of_oracle)
    if oracle is None or not (_has(oracle, ORACLE) and _may_have(oracle, OWN_ORACLE)):
        return of_oracle
    for file, state in states.items():
        if file.name == "trial.json" and not _is_trial(state or {}, file, oracle):
            return file
    return None


def _is_trial(state: dict[str, Any], file: Path, oracle: dict[str, Any]) -> bool:
    """Whether a state is that of the trial whose folder it is in, and the oracle knows it.

    A kill between KerasTuner's two writes leaves a trial that the oracle never runs.
    """
    name = file.parent.name.removeprefix("trial_")
    if not (_has(state, TRIAL) and math.isfinite(state["score"] or 0.0)):
        return False
    return state["trial_id"] == name and name in oracle["start_order"]


def _state(file: Path) -> dict[str, Any] | None:
    """The state in a file of KerasTuner's, or `None` if it holds none."""
    with contextlib.suppress(RecordError, ValueError, RecursionError):
        state = json.loads(read(file) or b"")
        return state if isinstance(state, dict) else None
    return None


def _has(state: dict[str, Any], kinds_of: dict[str, Any]) -> bool:
    """Whether a state has all keys, with values of their types."""
    return kinds_of.keys() <= state.keys() and _may_have(state, kinds_of)


def _may_have(state: dict[str, Any], kinds_of: dict[str, Any]) -> bool:
    """Whether those keys that a state has hold values of their types."""
    return all(
        plain_text.fits_json(state[name], kinds_of[name]) for name in state if name in kinds_of
    )
