"""Arrays: data in memory, the order of their examples, and how batches are cut from it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.errors import DataError

STRINGS = "OSUT"  # NumPy's `dtype.kind` of arrays that may hold text


def as_arrays(structure: Any) -> Any:
    """Convert the user's arrays in lists, tuples and dicts to NumPy arrays in tuples and dicts.

    Lists become tuples, since TensorFlow takes a list for one tensor.
    """
    check_arrays(structure)
    return keras.tree.map_structure(_as_array, keras.tree.lists_to_tuples(structure))


def _as_array(part: Any) -> np.ndarray:
    array = np.asarray(part)
    if array.dtype.kind == "c":
        raise DataError(
            "Arrays must hold real numbers",
            f"{array.dtype}: Keras drops the imaginary parts",
            "Pass the parts as two channels, with numpy.stack([x.real, x.imag], -1)",
        )
    if array.dtype.kind not in STRINGS:
        return array
    others = {type(item).__name__ for item in array.flat if not isinstance(item, (str, bytes))}
    if others:
        raise DataError(
            "Arrays must hold numbers or text",
            f"{array.dtype} of {', '.join(sorted(others))}",
            "Convert with astype('float32')",
        )
    return array


def as_tensors(arrays: Any) -> Any:
    """Convert arrays to tensors in host memory, with floats as `keras.config.floatx()`."""
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
    """Refuse values that are not arrays, also inside a nested structure."""
    for part in keras.tree.flatten(arrays):
        if not hasattr(part, "shape") or not hasattr(part, "__array__") or len(part.shape) == 0:
            raise DataError(
                "Data must be arrays, a keras.utils.PyDataset or a tf.data.Dataset",
                f"{type(part).__name__}",
                "Convert with numpy.asarray; for a generator, use tf.data.Dataset.from_generator",
            )


def check_labels(kinds: Iterable[str]) -> None:
    """Refuse text where labels must be numbers."""
    if "string" in kinds:
        raise DataError(
            "Labels must be numbers",
            "text",
            "Convert them, for example with keras.layers.StringLookup or "
            "numpy.unique(return_inverse=True)",
        )


def common_length(arrays: Any) -> int:
    """Return the number of examples, which all arrays must share."""
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
    """Return TensorFlow's name of an array's type; `"string"` for text of any kind."""
    return "string" if array.dtype.kind in STRINGS else str(tf.as_dtype(array.dtype).name)


def checksum(parts: Iterable[Any]) -> int:
    """Return a checksum of the contents of arrays or tensors."""
    total = 0
    for part in parts:
        total = zlib.crc32(bytes_of(part), total)
    return total


def bytes_of(tensor: Any) -> bytes:
    """Return the contents of a tensor, for a checksum.

    An array of text holds addresses, so each string is written with its length instead.
    """
    array = np.asarray(tensor)
    if array.dtype.kind not in STRINGS:
        return bytes(np.ascontiguousarray(array).tobytes())
    items = array.reshape(-1).tolist()
    strings = [item if isinstance(item, bytes) else str(item).encode() for item in items]
    return b"".join(len(string).to_bytes(8, "little") + string for string in strings)


AT_ONCE = 1 << 14  # examples of a cut


def cut(examples: Any, size: int = AT_ONCE) -> Iterator[Any]:
    """Cut arrays into batches, in their order."""
    for start in range(0, len(keras.tree.flatten(examples)[0]), size):
        yield keras.tree.map_structure(
            lambda array, start=start: array[start : start + size], examples
        )
