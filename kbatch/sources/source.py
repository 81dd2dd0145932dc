"""Source: where the examples of `--data` come from, told by its text."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from kbatch.errors import DataError
from kbatch.sources import function, npz, pictures, tfds
from kbatch.sources.examples import Examples, Progress
from kbatch.sources.shares import Shares

MUST = (
    "--data must be a folder or zip with one folder of pictures per class, an NPZ file, tfds:NAME, "
    "or module:function"
)


class Source(Protocol):
    """Examples that were looked at, and are not read yet."""

    @property
    def images(self) -> bool:
        """Whether the examples are pictures."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one example; `None` if unknown before they are read."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty if unknown before they are read, or none."""

    @property
    def total(self) -> int | None:
        """How many examples there are; `None` if unknown before they are read."""

    def load(self, on_progress: Progress) -> Examples:
        """Return the examples. The same seed gives the same split.

        Args:
            on_progress: Function called with the number of examples ready so far.

        Raises:
            DataError: If they cannot be used; the message says why.
        """


def look(text: str, image_size: int | None, shares: Shares, seed: int) -> Source:
    """Find the examples that a text names, as far as that is quick. Imports no TensorFlow.

    Args:
        text: String: the path of a folder, a zip or an NPZ file, `tfds:` and a name, or
            `module:function`.
        image_size: Integer, height and width in pixels that pictures are resized to; `None` for
            64.
        shares: `Shares` of examples that are not split yet.
        seed: Integer, the seed of the split.

    Raises:
        DataError: If it names none of these, or what cannot be used.
    """
    pixels = pictures.IMAGE_SIZE if image_size is None else image_size
    found: Source
    if text.startswith(tfds.PREFIX):
        found = tfds.look(text.removeprefix(tfds.PREFIX), pixels, shares, seed)
    elif _kind(text) == "folder":
        return pictures.look(Path(text), pixels, shares, seed)
    elif _kind(text) == "file":
        if not npz.holds_arrays(Path(text)):
            return pictures.look(Path(text), pixels, shares, seed)
        found = npz.look(Path(text), shares, seed)
    elif ":" in text:
        found = function.look(text, shares, seed)
    else:
        raise DataError(f"{MUST}, that exists", text, "Check the path")
    if image_size is not None and not (found.images and isinstance(found, tfds.TfdsSource)):
        raise DataError(
            "--image-size must come with pictures in a folder, a zip or TFDS, which are resized",
            f"--image-size {image_size} and --data {text}",
            "Leave it out: arrays keep their shape",
        )
    return found


def _kind(text: str) -> str:
    """What a path leads to: a folder, a file, or nothing (an empty string)."""
    path = Path(text)
    try:
        if not text:
            return ""
        if path.is_dir():
            return "folder"
        if path.is_file():
            return "file"
        odd = path.exists()
    except (OSError, ValueError) as error:  # such as for a name that is too long
        raise DataError(MUST, f"{error}", "Check the path") from error
    if odd:
        raise DataError(MUST, f"{text}, a pipe or a device", "Check the path")
    return ""
