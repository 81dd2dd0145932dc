"""Arrays: what the user holds in memory, checked and made the same at the border."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.errors import DataError

STRINGS = "OSUT"  # NumPy's kinds of arrays whose contents may be text


def as_arrays(structure: Any) -> Any:
    """NumPy arrays in tuples and dicts, of whatever arrays in lists, tuples and dicts the user has.

    Lists become tuples, because TensorFlow takes a list for one tensor.

    Raises:
        DataError: If something in it is no array, or an array of neither numbers nor text.
    """
    check_arrays(structure)
    return keras.tree.map_structure(_as_array, keras.tree.lists_to_tuples(structure))


def _as_array(part: Any) -> np.ndarray:
    array = np.asarray(part)
    if array.dtype.kind in STRINGS and not all(
        isinstance(item, (str, bytes)) for item in array.flat
    ):
        others = sorted(
            {type(item).__name__ for item in array.flat if not isinstance(item, (str, bytes))}
        )
        raise DataError(
            "Arrays must hold numbers or text",
            f"{array.dtype} of {', '.join(others)}",
            "Convert with astype('float32')",
        )
    return array


def as_tensors(arrays: Any) -> Any:
    """The arrays as tensors in the machine's own memory; floating-point numbers as `keras.config.floatx()`, as Keras' `fit` takes them."""
    with tf.device("CPU:0"):
        return keras.tree.map_structure(_as_tensor, arrays)


def _as_tensor(array: np.ndarray) -> tf.Tensor:
    try:
        tensor = tf.convert_to_tensor(array)
    except (TypeError, ValueError) as error:
        raise DataError(
            "Arrays must be of a type that TensorFlow has",
            f"{array.dtype}",
            "Convert with astype('float32')",
        ) from error
    return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor


def check_arrays(arrays: Any) -> None:
    """Refuse what is no array, or a nested structure that holds something else."""
    for part in keras.tree.flatten(arrays):
        if not hasattr(part, "shape") or not hasattr(part, "__array__") or len(part.shape) == 0:
            raise DataError(
                "Data must be arrays, a keras.utils.PyDataset or a tf.data.Dataset",
                f"{type(part).__name__}",
                "Convert with numpy.asarray; for a generator, use tf.data.Dataset.from_generator",
            )


def check_labels(kinds: Iterable[str]) -> None:
    """Refuse text where labels must be numbers.

    Args:
        kinds: Names of the labels' types, as TensorFlow calls them.
    """
    if "string" in kinds:
        raise DataError(
            "Labels must be numbers",
            "text",
            "Convert them, for example with keras.layers.StringLookup or numpy.unique(return_inverse=True)",
        )


def common_length(arrays: Any) -> int:
    """The number of examples that all arrays share."""
    lengths = {int(array.shape[0]) for array in keras.tree.flatten(arrays)}
    if len(lengths) != 1 or lengths == {0}:
        if lengths == {0}:
            raise DataError(
                "Arrays must hold examples", "0 examples", "Pass arrays that are not empty"
            )
        raise DataError(
            "All arrays must hold the same number of examples",
            sorted(lengths),
            "Cut them to the same length",
        )
    return lengths.pop()


def type_name(array: np.ndarray) -> str:
    """The name of an array's type, as TensorFlow calls it; `"string"` for text of any kind."""
    return "string" if array.dtype.kind in STRINGS else str(tf.as_dtype(array.dtype).name)


def checksum(parts: Iterable[Any]) -> int:
    """A checksum of the contents of arrays or tensors, of text as of numbers."""
    total = 0
    for part in parts:
        total = zlib.crc32(bytes_of(part), total)
    return total


def bytes_of(tensor: Any) -> bytes:
    """The contents of a tensor, for a checksum; for text each piece with its length, since the array itself holds addresses."""
    array = np.asarray(tensor)
    if array.dtype.kind in STRINGS:
        pieces = (
            piece if isinstance(piece, bytes) else str(piece).encode()
            for piece in array.reshape(-1).tolist()
        )
        return b"".join(len(piece).to_bytes(8, "little") + piece for piece in pieces)
    return bytes(np.ascontiguousarray(array).tobytes())
