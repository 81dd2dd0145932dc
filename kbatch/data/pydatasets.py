"""The batches of a `keras.utils.PyDataset` as a `tf.data.Dataset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data.arrays import as_arrays, type_name
from kbatch.data.survey import Survey
from kbatch.errors import DataError

REMEDY = "the PyDataset is the limit: give it more `workers`, or make its batches cheaper"


def from_pydataset(given: Any) -> tuple[tf.data.Dataset, Survey]:
    """Return a dataset of the batches of a `keras.utils.PyDataset`, and its survey.

    Every pass calls `on_epoch_begin`, asks for each batch once, and calls `on_epoch_end`, so that a
    PyDataset shuffles and augments as in `fit`. It is read by as many threads as it has workers.

    Args:
        given: `keras.utils.PyDataset`.

    Raises:
        DataError: If it has no length, or its batches hold different arrays.
    """
    length = given.num_batches
    if not length:
        raise DataError(
            "A PyDataset must have a length of at least 1",
            length,
            "Let `__len__` return its number of batches",
        )
    structure, specs, known = _read_once(given, length)

    def read(number: Any) -> Any:
        parts = tf.numpy_function(
            lambda i: keras.tree.flatten(_batch(given, int(i))),
            [number],
            [spec.dtype for spec in specs],
        )
        return keras.tree.pack_sequence_as(
            structure,
            [tf.ensure_shape(part, spec.shape) for part, spec in zip(parts, specs, strict=True)],
        )

    batches = tf.data.Dataset.range(length).map(
        read, num_parallel_calls=max(int(given.workers), 1), deterministic=True
    )
    begin, end = (
        _none_but_call(method).map(read) for method in (given.on_epoch_begin, given.on_epoch_end)
    )
    return begin.concatenate(batches).concatenate(end), known


def _none_but_call(method: Callable[[], Any]) -> tf.data.Dataset:
    """Return a dataset without elements that calls a method when it is read."""

    def call(_: Any) -> bool:
        method()
        return False

    return tf.data.Dataset.range(1).filter(
        lambda number: tf.ensure_shape(tf.numpy_function(call, [number], tf.bool), ())
    )


def _read_once(given: Any, length: int) -> tuple[Any, list[tf.TensorSpec], Survey]:
    """Return the structure of a batch, the specs that fit all batches, and their survey."""
    given.on_epoch_begin()
    structure = _batch(given, 0)
    first = keras.tree.flatten(structure)
    shapes: list[list[int | None]] = [list(part.shape[1:]) for part in first]
    examples = total_bytes = 0
    for number in range(length):
        parts = keras.tree.flatten(_batch(given, number))
        if _types(parts) != _types(first):
            raise DataError(
                "All batches of a PyDataset must hold the same arrays",
                f"other arrays in batch {number}",
                "Let `__getitem__` return the same arrays for every batch",
            )
        shapes = [_common(shape, part.shape[1:]) for shape, part in zip(shapes, parts, strict=True)]
        examples += len(parts[0])
        total_bytes += sum(part.nbytes for part in parts)
    given.on_epoch_end()
    specs = [
        tf.TensorSpec((None, *shape), type_name(part))
        for shape, part in zip(shapes, first, strict=True)
    ]
    return structure, specs, Survey(examples, total_bytes, any(None in shape for shape in shapes))


def _types(parts: list[np.ndarray]) -> list[tuple[int, str]]:
    """Return the number of dimensions and the type of each array."""
    return [(part.ndim, type_name(part)) for part in parts]


def _common(one: list[int | None], other: tuple[int, ...]) -> list[int | None]:
    return [size if size == again else None for size, again in zip(one, other, strict=True)]


def _batch(given: Any, number: int) -> Any:
    """Return one batch as a tuple `(x, y)` or `(x, y, sample_weight)` of arrays."""
    item = given[number]
    items = item if isinstance(item, (tuple, list)) else ()
    parts = tuple(part for part in items if part is not None)
    if len(parts) not in (2, 3):
        raise DataError(
            "The batches of a PyDataset must be (x, y) or (x, y, sample_weight)",
            type(item).__name__,
            "Return such a tuple",
        )
    return keras.tree.map_structure(_cast, as_arrays(parts))


def _cast(array: np.ndarray) -> np.ndarray:
    return array.astype(keras.config.floatx(), copy=False) if array.dtype.kind == "f" else array
