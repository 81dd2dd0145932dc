"""A full disk, a limit on files and a read-only folder are one sentence, and lose nothing."""

import errno
import os
import subprocess
import sys

import pytest
from fake_search import once, trained

from kbatch import Recipe
from kbatch.errors import RecordError
from kbatch.records import files, store
from kbatch.records.at_most_once import CRASHES, Job
from kbatch.records.project import Project
from kbatch.records.store import Store
from kbatch.runtime.oom import is_out_of_memory, is_suspect

JOB = Job("search", 0, 0, Recipe(), {}, 1e-3)
HDF5 = (
    "Can't synchronously write data (file write failed: time = Mon, "
    "filename = 'trial_0/checkpoint.weights.h5', file descriptor = 5, errno "
    "= 28, "
)
FOREIGN = [
    OSError(HDF5 + "error message = 'No space left on device', buf = 0x1)"),
    RuntimeError(
        "Unable to flush file's cached information (errno = 28, error message "
        "= 'No space left on device')"
    ),
    type("ResourceExhaustedError", (Exception,), {})(
        "{{function_node x}} /tmp/ckpt/part-0; No space left on device [Op:MergeV2Checkpoints]"
    ),
    OSError(errno.EFBIG, HDF5.replace("28", "27") + "error message = 'File too large', buf = 0x1)"),
    OSError(errno.EDQUOT, "Disk quota exceeded", "oracle.json"),
    OSError(errno.EFBIG, "File too large", "oracle.json"),
    OSError(errno.EROFS, "Read-only file system", "oracle.json"),
]


@pytest.mark.parametrize(
    "error", FOREIGN, ids=lambda error: f"{type(error).__name__}-{str(error)[-40:]}"
)
def test_full_disks_are_told_from_full_memory_in_every_library(error):
    wrapped = RuntimeError("A trial failed")
    wrapped.__cause__ = error
    assert isinstance(files.disk_trouble(wrapped), RecordError)
    assert len(str(files.disk_trouble(wrapped))) < 200
    assert not is_out_of_memory(wrapped)
    assert not is_suspect(wrapped)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ValueError("shape"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        KeyError("loss"),
    ],
)
def test_what_is_no_disk_is_left_to_others(error):
    assert files.disk_trouble(error) is None


def test_the_sentence_names_the_file_and_what_to_do():
    said = (
        "The disk must have room. Received: No space left on device: "
        "trial_0/checkpoint.weights.h5. Free some"
    )
    assert str(files.disk_trouble(FOREIGN[0])).startswith(said)


@pytest.fixture
def full(monkeypatch):
    """A disk that takes so many more bytes and then none."""

    def fill(room):
        left = [room]
        real = os.fsync

        def fsync(handle):
            if left[0] <= 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            left[0] -= 1
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)

    yield fill
    monkeypatch.undo()


def test_a_file_that_found_no_room_leaves_the_earlier_one(tmp_path, full):
    files.write(tmp_path / "project.json", "before")
    full(0)
    with pytest.raises(RecordError, match="must have room"):
        files.write(tmp_path / "project.json", "after")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "project.json": "before"
    }


def test_a_line_that_found_no_room_is_taken_back(tmp_path, full):
    kept = Store(tmp_path)
    kept.start("a")
    before = kept.path.read_bytes()
    full(0)
    with pytest.raises(RecordError, match=r"must have room.*records.jsonl"):
        kept.end(JOB.record(trained(), 0.02))
    assert kept.path.read_bytes() == before
    assert kept.records() == []


def test_trainings_that_a_full_disk_ends_are_no_crashes(tmp_path, full, monkeypatch):
    def no_room():
        raise OSError(errno.ENOSPC, "No space left on device", "checkpoint.weights.h5")

    for _ in range(CRASHES + 1):
        full(1)  # room for the start, not for the line that takes it back
        with pytest.raises(OSError, match="No space left"):
            once(Project(tmp_path), JOB, no_room)
        monkeypatch.undo()
    assert once(Project(tmp_path), JOB, trained).outcome.ended == "horizon"


WRITE = """
import resource, sys
from pathlib import Path
from kbatch.errors import RecordError
from kbatch.records.store import Store
folder = Path(sys.argv[1])
limit = (folder / "records.jsonl").stat().st_size + 20
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    Store(folder).start("a" * 40)
except RecordError as error:
    print(error)
"""


def test_a_file_size_limit_is_named_and_leaves_no_half_line(tmp_path):
    Store(tmp_path).start("first")
    before = (tmp_path / "records.jsonl").read_bytes()
    said = subprocess.run(
        [sys.executable, "-c", WRITE, tmp_path], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("Files must be allowed to grow. Received: File too large")
    assert (tmp_path / "records.jsonl").read_bytes() == before


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 kB, where one can be mounted."""
    path = tmp_path / "small"
    path.mkdir()
    if (
        os.name != "posix"
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", path],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("no disk can be mounted here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def test_a_project_on_a_full_disk_goes_on_once_there_is_room(small_disk):
    project = Project(small_disk)
    once(project, JOB, trained)
    before = project.store.path.read_bytes()
    (small_disk / "filling").write_bytes(b"")
    with (
        pytest.raises(OSError, match="No space"),
        open(small_disk / "filling", "wb", buffering=0) as file,
    ):
        while True:
            file.write(b"x" * 512)
    others = [Job("search", trial, 0, Recipe(), {"units": trial}, 1e-3) for trial in range(1, 9)]
    with pytest.raises(RecordError, match="must have room"):
        for other in others:
            once(Project(small_disk), other, trained)
    kept = Project(small_disk).store.records()
    assert project.store.path.read_bytes().startswith(before)
    (small_disk / "filling").unlink()
    for other in others:
        once(Project(small_disk), other, trained)
    assert Project(small_disk).store.records()[: len(kept)] == kept
    assert len(Project(small_disk).store.records()) == 9


def test_a_read_only_folder_is_one_sentence(small_disk):
    once(Project(small_disk), JOB, trained)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert len(Project(small_disk).store.records()) == 1
    with pytest.raises(RecordError, match="must be writable. Received: Read-only file system"):
        files.write(small_disk / "report.md", "")
    with pytest.raises(RecordError, match="must be writable"):
        once(Project(small_disk), Job("search", 1, 0, Recipe(), {"units": 1}, 1e-3), trained)


@pytest.mark.parametrize("odd", ["folder", "pipe", "device", "loop", "endless"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(odd, tmp_path):
    path = tmp_path / "records.jsonl"
    make = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/null"),
        "endless": lambda: path.symlink_to("/dev/zero"),
        "loop": lambda: path.symlink_to(path),
    }
    make[odd]()
    with pytest.raises(RecordError, match=r"records.jsonl must be a file that can be read"):
        store.read(path)
    with pytest.raises(RecordError):
        Store(tmp_path)


FILL = """
import resource, sys
import h5py, numpy as np
import typer
from kbatch.cli import command

resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

def fill():
    with command.told_plainly("out"):
        file = h5py.File(sys.argv[1], "w")
        for layer in range(3):
            file.create_group(f"layer {layer}")["weights"] = np.zeros(400)
        raise OSError(27, "File too large", sys.argv[1])

try:
    fill()
except typer.Exit as error:
    sys.exit(error.exit_code)
"""


def test_weights_that_found_no_room_are_one_sentence(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", FILL, tmp_path / "a.weights.h5"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith(
        "error: Files must be allowed to grow. Received: File too large: "
    )
    assert len(ended.stderr.splitlines()) == 1


def test_no_training_begins_without_room_for_its_weights(small_disk):
    files.check_room(small_disk, 1000)
    with pytest.raises(
        RecordError,
        match=r"must have room for the weights. Received: 0.1 MB free in .* and 5.0 MB needed",
    ):
        files.check_room(small_disk, 5_000_000)
