"""Array files: arrays of an NPZ file, or those that a function returns."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kbatch.data import examples
from kbatch.data.examples import (
    FEW_TO_VALIDATE,
    PARTS,
    TEST,
    TRAIN,
    VALIDATION,
    WHOLE,
    Examples,
    Form,
    Part,
    Progress,
    Shares,
    parted,
)
from kbatch.data.pictures import shown
from kbatch.errors import DataError, ModelError
from kbatch.runtime.users_code import Imported, imported

X, Y = "x", "y"
KINDS = {
    **dict.fromkeys((X, "images", "image", "features", "data"), X),
    **dict.fromkeys((Y, "labels", "label", "targets", "target"), Y),
}
UNDERSTOOD = (
    "x and y, or x_train and y_train, with x_val, y_val, x_test and y_test if you have them "
    "(images and labels may be said for x and y)"
)
Place = tuple[str, str]  # a part of the data, and X or Y
# NumPy's kinds of numbers and of text
NUMBERS, TEXT = "biuf", "SU"


def place_of(name: str) -> Place | None:
    """Return the part and the kind of an array by its name; `None` for another name.

    Example:
    >>> place_of("x_train"), place_of("Val_labels"), place_of("y"), place_of("weights")
    (('train', 'x'), ('validation', 'y'), ('', 'y'), None)
    """
    words = name.lower().split("_")
    kinds = [word for word in words if word in KINDS]
    rest = "_".join(word for word in words if word not in KINDS)
    if len(kinds) != 1 or rest not in (WHOLE, *PARTS):
        return None
    return PARTS.get(rest, WHOLE), KINDS[kinds[0]]


def places(names: Iterable[str], source: str) -> dict[Place, str]:
    """Return the names of arrays by part and kind."""
    names = list(names)
    found: dict[Place, str] = {}
    for name in names:
        place = place_of(name)
        if place is None or place in found:
            again = "" if place is None else f", which means the same as {found[place]}"
            raise _refused_arrays(source, f"{name}{again}")
        found[place] = name
    parts = {part for part, _ in found}
    missing = [
        f"{kind}_{part}".rstrip("_")
        for part in sorted(parts)
        for kind in (X, Y)
        if (part, kind) not in found
    ]
    both = {WHOLE, TRAIN} <= parts
    if missing or both or not parts & {WHOLE, TRAIN}:
        lacking = f"; {', '.join(missing)} missing" if missing else ""
        raise _refused_arrays(source, f"{', '.join(names) or 'no arrays'}{lacking}")
    return found


def check_examples(
    shapes: Mapping[str, tuple[int, ...]], kinds: Mapping[str, np.dtype], source: str
) -> None:
    """Refuse arrays that cannot be examples and labels, by their shapes and types."""
    of_place = places(shapes, source)
    for name in of_place.values():
        if kinds[name].kind not in NUMBERS + TEXT:
            raise DataError(
                f"Arrays of {source} must hold numbers or text",
                f"{name} of type {kinds[name]}",
                "Convert it with astype, and save it again; pickled objects are not read",
            )
        if not shapes[name] or not shapes[name][0]:
            raise DataError(
                f"Arrays of {source} must hold one row per example",
                f"{name} of shape {shapes[name]}",
                "Save arrays with the examples along the first dimension",
            )
    for (part, kind), name in of_place.items():
        other = of_place[part, Y if kind == X else X]
        if shapes[name][0] != shapes[other][0]:
            raise DataError(
                f"Examples and labels of {source} must be the same number",
                f"{shapes[name][0]:,} in {name}, {shapes[other][0]:,} in {other}",
                "Save one label per example",
            )
    for kind in (X, Y):
        rows = {name: shapes[name][1:] for (_, of), name in of_place.items() if of == kind}
        if len(set(rows.values())) > 1:
            words = ", ".join(f"{name} of {shape}" for name, shape in rows.items())
            raise DataError(
                f"Examples of all parts of {source} must have the same shape",
                words,
                "Save them in the same form",
            )


def examples_of(arrays: Mapping[str, Any], source: str, shares: Shares, seed: int) -> Examples:
    """Return examples and labels out of arrays by name.

    Labels that are text become numbers of classes in the order of the names.
    """
    of_place = places(arrays, source)
    labels = {part: np.asarray(arrays[name]) for (part, of), name in of_place.items() if of == Y}
    classes, labels = _numbered(labels, source)
    read: dict[str, Part] = {
        part: (np.asarray(arrays[of_place[part, X]]), labels[part]) for part in labels
    }
    notes: list[str] = []
    train, validation, test = parted(
        read, shares, seed, lambda numbers, shares: _strata(numbers, shares, notes)
    )
    if len(validation[1]) < FEW_TO_VALIDATE:
        notes.append(f"Only {len(validation[1])} examples to validate on.")
    odd = sum(
        int(np.size(x) - np.isfinite(x).sum()) for x, _ in read.values() if x.dtype.kind == "f"
    )
    if odd:
        notes.append(f"{odd:,} values of the examples are not finite.")
    count = sum(len(y) for _, y in read.values())
    of_classes = f" of {len(classes)} classes" if classes else ""
    name = f"{count:,} examples{of_classes} of {source}"
    return Examples(name, train, validation, test, classes, notes=tuple(notes))


def _numbered(
    labels: dict[str, np.ndarray], source: str
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Labels as numbers, and the names of their classes if they are text."""
    kinds = {part: array.dtype.kind in TEXT for part, array in labels.items()}
    if not any(kinds.values()):
        for part, array in labels.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                count = int(array.size - np.isfinite(array).sum())
                raise DataError(
                    f"Labels of {source} must be finite numbers",
                    f"{count:,} that are not, to {part or 'train'}",
                    "Take these examples out",
                )
        return (), {part: _plain(array) for part, array in labels.items()}
    texts = {part: _text(_plain(array)) for part, array in labels.items()}
    names = np.unique(texts[TRAIN if TRAIN in texts else WHOLE])
    for part, array in texts.items():
        unknown = sorted(set(array.reshape(-1).tolist()) - set(names.tolist()))
        if unknown or array.ndim > 1 or len(names) < 2:
            raise DataError(
                f"Labels of {source} that are text must name two or more classes, one an example, "
                "all of which are trained on",
                f"{', '.join(map(str, unknown[:5])) or f'{len(names)} classes'} in "
                f"{part or 'y'} of shape {array.shape}",
                "Name the class of each example",
            )
    numbers = {part: np.searchsorted(names, array).astype("int32") for part, array in texts.items()}
    return tuple(map(str, names)), numbers


def _plain(array: np.ndarray) -> np.ndarray:
    """Labels of shape `(n,)` where each is a single value, and no booleans."""
    flat = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    return flat.astype("int32") if flat.dtype.kind == "b" else flat


def _text(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "S":
        return array.astype(str)
    return np.char.decode(array, "utf-8", "backslashreplace")


def _strata(labels: np.ndarray, shares: Shares, notes: list[str]) -> np.ndarray:
    """The class of each example for the split; one for all where labels are no classes."""
    if len(labels) < shares.least:
        raise DataError(
            f"There must be at least {shares.least} examples to split",
            len(labels),
            "Pass more examples",
        )
    of_one_column = labels.ndim == 1 and labels.dtype.kind in "iu"
    is_one_hot = labels.ndim == 2 and bool(np.isin(labels, (0, 1)).all())
    one = np.zeros(len(labels), "int32")
    if is_one_hot and bool((labels.sum(axis=1) == 1).all()):
        classes = labels.argmax(axis=1)
    elif of_one_column:
        classes = labels
    else:
        return one
    if np.unique(classes, return_counts=True)[1].min() < shares.least:
        notes.append(
            f"Some labels have fewer than {shares.least} examples: the split is not by class."
        )
        return one
    return classes


def _refused_arrays(source: str, received: str) -> DataError:
    return DataError(f"{source} must hold {UNDERSTOOD}", received, "Save the arrays by these names")


NPY_ENDING = ".npy"  # of the names in the file
# What broken bytes raise; an encrypted file raises RuntimeError.
BROKEN = (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error)
IMAGE_AXES, CHANNELS = 3, (1, 3)


@dataclass(frozen=True)
class NpzSource:
    """An NPZ file; see `kbatch.data.sources.NamedData`."""

    path: Path
    form: Form | None  # of one example; `None` for text
    shares: Shares  # of examples that are not split yet
    seed: int
    classes = ()
    total = None

    @property
    def images(self) -> bool:
        """Whether the examples have the shape of pictures."""
        shape = () if self.form is None else self.form.shape
        return len(shape) == IMAGE_AXES and shape[-1] in CHANNELS

    def load(self, on_progress: Progress) -> Examples:
        """Return the examples; see `kbatch.data.sources.NamedData`."""
        try:
            with np.load(self.path, allow_pickle=False) as opened:
                found = {name: opened[name] for name in opened.files}
            return examples_of(found, shown(self.path.name), self.shares, self.seed)
        except DataError:
            raise
        except MemoryError as error:
            raise DataError(
                "The arrays must fit into memory", self.path.name, "Pass fewer examples"
            ) from error
        except BROKEN as error:
            raise _broken(self.path, error) from error


def look_npz(path: Path, shares: Shares, seed: int) -> NpzSource:
    """Check names, shapes and types of the arrays in a file, without reading the arrays."""
    try:
        headers = _headers(path)
    except (MemoryError, *BROKEN) as error:  # MemoryError: of a header that is nested too deep
        raise _broken(path, error) from error
    name = shown(path.name)
    shapes = {each: shape for each, (shape, _) in headers.items()}
    kinds = {each: kind for each, (_, kind) in headers.items()}
    check_examples(shapes, kinds, name)
    needed = sum(_bytes(shape, kind) for shape, kind in headers.values())
    examples.check_room(needed, f"the arrays of {name}", "Pass a file with fewer examples")
    of_place = places(shapes, name)
    x = next(each for (_, kind), each in of_place.items() if kind == X)
    form = Form(shapes[x][1:], kinds[x].name) if kinds[x].kind in NUMBERS else None
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
    return bool(names) and all(name.endswith(NPY_ENDING) for name in names)


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
            headers[name.removesuffix(NPY_ENDING)] = (shape, kind)
    return headers


def _broken(path: Path, error: BaseException) -> DataError:
    return DataError(
        "--data must be a whole NPZ file, as numpy.savez writes it, without pickled objects",
        f"{path}: {str(error) or type(error).__name__}",
        "Save it again with numpy.savez",
    )


RETURNS = "(x, y), (train, test), (train, validation, test) of such pairs, or a dict of arrays"
PAIR = 2
OF_PAIRS = {2: (TRAIN, TEST), 3: (TRAIN, VALIDATION, TEST)}


@dataclass(frozen=True)
class FunctionSource:
    """A function; see `kbatch.data.sources.NamedData`."""

    function: Imported  # the function, which is imported when it is called
    shares: Shares  # of examples that are not split yet
    seed: int
    classes = ()
    total = None
    form = None
    images = False

    @property
    def name(self) -> str:
        """The function's name."""
        return f"{self.function.module}:{self.function.name}"

    def load(self, on_progress: Progress) -> Examples:
        """Return the examples; see `kbatch.data.sources.NamedData`."""
        try:
            found = self.function.load()()
        except ModelError as error:
            raise _refusal(self.name, error.received) from error
        except (Exception, SystemExit) as error:  # of the user's own code
            raise DataError(
                f"{self.name} must return data",
                " ".join(f"{type(error).__name__}: {error}".split()),
                "Call it in Python to see where it fails",
            ) from error
        named = self._named(found)
        shapes = {name: array.shape for name, array in named.items()}
        check_examples(shapes, {name: array.dtype for name, array in named.items()}, self.name)
        return examples_of(named, self.name, self.shares, self.seed)

    def _named(self, found: Any) -> dict[str, np.ndarray]:
        """What the function returned, as arrays by name."""
        if isinstance(found, Mapping):
            return {str(name): self._array(array) for name, array in found.items()}
        parts = list(found) if isinstance(found, (tuple, list)) else []
        if len(parts) == PAIR and not any(isinstance(part, tuple) for part in parts):
            return dict(zip((X, Y), map(self._array, parts), strict=True))
        if len(parts) not in OF_PAIRS or not all(_is_pair(part) for part in parts):
            kinds = ", ".join(type(part).__name__ for part in parts)
            raise _refusal(self.name, f"({kinds})" if parts else type(found).__name__)
        return {
            f"{kind}_{name}": self._array(array)
            for name, pair in zip(OF_PAIRS[len(parts)], parts, strict=True)
            for kind, array in zip((X, Y), pair, strict=True)
        }

    def _array(self, value: Any) -> np.ndarray:
        if not hasattr(value, "__array__") and not isinstance(value, (list, tuple)):
            raise _refusal(self.name, type(value).__name__)
        try:
            return np.asarray(value)
        except (TypeError, ValueError) as error:  # of rows of different lengths
            raise _refusal(self.name, f"{error}") from error


def look_function(text: str, shares: Shares, seed: int) -> FunctionSource:
    """Find the module of a function, without importing it."""
    try:
        return FunctionSource(imported(text), shares, seed)
    except ModelError as error:
        raise DataError(
            "--data as module:function must name a module that can be imported from here",
            text,
            "Run the command in the module's folder, or set PYTHONPATH",
        ) from error


def _is_pair(part: Any) -> bool:
    return isinstance(part, (tuple, list)) and len(part) == PAIR


def _refusal(name: str, received: object) -> DataError:
    return DataError(f"{name} must be a function that returns {RETURNS}", received, "Return these")
