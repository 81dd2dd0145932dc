"""NPZ files: arrays by name, which are looked at before they are read. Pickles are never read."""

from __future__ import annotations

import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kbatch.errors import DataError
from kbatch.sources import arrays, room
from kbatch.sources.examples import Examples, Form, Progress
from kbatch.sources.photographs import shown
from kbatch.sources.shares import Shares

ENDING = ".npy"  # of the names in the file
# What broken bytes raise; an encrypted file raises RuntimeError.
BROKEN = (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error)
IMAGE_AXES, CHANNELS = 3, (1, 3)


@dataclass(frozen=True)
class NpzSource:
    """An NPZ file; see `kbatch.sources.source.Source`.

    Attributes:
        path: The file.
        form: `Form` of one example; `None` for text.
        shares: `Shares` of examples that are not split yet.
        seed: Integer, the seed of the split.
    """

    path: Path
    form: Form | None
    shares: Shares
    seed: int
    classes = ()
    total = None

    @property
    def images(self) -> bool:
        """Whether the examples have the shape of pictures."""
        shape = () if self.form is None else self.form.shape
        return len(shape) == IMAGE_AXES and shape[-1] in CHANNELS

    def load(self, on_progress: Progress) -> Examples:
        """Return the examples; see `kbatch.sources.source.Source`."""
        try:
            with np.load(self.path, allow_pickle=False) as opened:
                found = {name: opened[name] for name in opened.files}
            return arrays.examples_of(found, shown(self.path.name), self.shares, self.seed)
        except DataError:
            raise
        except MemoryError as error:
            raise DataError(
                "The arrays must fit into memory", self.path.name, "Pass fewer examples"
            ) from error
        except BROKEN as error:
            raise _broken(self.path, error) from error


def look(path: Path, shares: Shares, seed: int) -> NpzSource:
    """Check names, shapes and types of the arrays in a file, without reading the arrays.

    Args:
        path: The file.
        shares: `Shares` of examples that are not split yet.
        seed: Integer, the seed of the split.

    Raises:
        DataError: If the file is broken, holds other names, or arrays that do not fit each other
            or the memory.
    """
    try:
        headers = _headers(path)
    except (MemoryError, *BROKEN) as error:  # MemoryError: of a header that is nested too deep
        raise _broken(path, error) from error
    name = shown(path.name)
    shapes = {each: shape for each, (shape, _) in headers.items()}
    kinds = {each: kind for each, (_, kind) in headers.items()}
    arrays.check(shapes, kinds, name)
    needed = sum(_bytes(shape, kind) for shape, kind in headers.values())
    room.check(needed, f"the arrays of {name}", "Pass a file with fewer examples")
    of_place = arrays.places(shapes, name)
    x = next(each for (_, kind), each in of_place.items() if kind == arrays.X)
    form = Form(shapes[x][1:], kinds[x].name) if kinds[x].kind in arrays.NUMBERS else None
    return NpzSource(path, form, shares, seed)


def _bytes(shape: tuple[int, ...], kind: np.dtype) -> int:
    """Bytes that an array takes; an axis and an element without any count as one."""
    return math.prod(max(size, 1) for size in shape) * max(kind.itemsize, 1)


def holds_arrays(path: Path) -> bool:
    """Return whether a file is an NPZ file, by its name or by what it holds."""
    if path.suffix.lower() == ".npz":
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except BROKEN:
        return False
    return bool(names) and all(name.endswith(ENDING) for name in names)


def _headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and type of each array."""
    headers = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                version = np.lib.format.read_magic(file)
                read = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }.get(version)
                if read is None:
                    raise ValueError(f"{name} of version {version}")
                shape, _, kind = read(file)
            headers[name.removesuffix(ENDING)] = (shape, kind)
    return headers


def _broken(path: Path, error: BaseException) -> DataError:
    return DataError(
        "--data must be a whole NPZ file, as numpy.savez writes it, without pickled objects",
        f"{path}: {str(error) or type(error).__name__}",
        "Save it again with numpy.savez",
    )
