"""The files of events that TensorBoard reads, written whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from kbatch.errors import SearchError

FORMAT = "brain.Event:2"  # the first event of a file


def name_of(kind: str, at: float, key: str) -> str:
    """Return the name of a file of events; of the same events it is the same.

    Args:
        kind: `"experiment"` or `"session"`.
        at: Float, Unix time of the events; TensorBoard reads files in this order.
        key: String, tells files of one kind and second apart.
    """
    return f"events.out.tfevents.{int(at):010d}.kbatch-{kind}.{key}"


def names(folder: str, kind: str) -> set[str]:
    """Return the names of the files of one kind in a folder, or in none.

    Args:
        folder: Folder of a run.
        kind: As in `name_of`.
    """
    found = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ()
    return {name for name in found if f".kbatch-{kind}." in name and not name.endswith(".tmp")}


def write(path: str, events: Iterable[Event]) -> None:
    """Write a file of events, unless it is there with these very events.

    Raises:
        SearchError: If it cannot be written.
    """
    content = io.BytesIO()
    writer = RecordWriter(content)
    for event in (Event(wall_time=0.0, file_version=FORMAT), *events):
        writer.write(event.SerializeToString(deterministic=True))
    with _explained():
        if tf.io.gfile.exists(path) and _read(path) == content.getvalue():
            return
        tf.io.gfile.makedirs(os.path.dirname(path))
        half = f"{path}.tmp"
        with tf.io.gfile.GFile(half, "wb") as file:
            file.write(content.getvalue())
        tf.io.gfile.rename(half, path, overwrite=True)


def make_folder(folder: str) -> None:
    """Make a folder, if it is not there.

    Raises:
        SearchError: If it cannot be made.
    """
    with _explained():
        tf.io.gfile.makedirs(folder)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Tell of TensorFlow's errors of files in kbatch's words."""
    try:
        yield
    except tf.errors.OpError as error:
        raise SearchError(
            "The log_dir of TensorBoard must be a folder that can be written",
            error.message,
            "Pass another log_dir, or make room: finished trainings are kept",
        ) from error


def _read(path: str) -> bytes:
    with tf.io.gfile.GFile(path, "rb") as file:
        return bytes(file.read())
