"""The survey of a dataset: facts that take a whole pass over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

READ_AT_ONCE = 64  # elements read before Ctrl-C is noticed again; chosen by hand, not tuned


@dataclass(frozen=True)
class Survey:
    """Facts of a dataset from one pass over it.

    Attributes:
        examples: Integer, number of examples.
        total_bytes: Integer, bytes of all examples.
        uneven: Boolean, whether examples differ in shape.
    """

    examples: int
    total_bytes: int
    uneven: bool


def survey(dataset: tf.data.Dataset, *, batched: bool) -> Survey:
    """Read a dataset once, which also fills its caches.

    Args:
        dataset: `tf.data.Dataset` that ends.
        batched: Boolean, whether the elements are batches.
    """

    def measure(*element: Any) -> tuple[Any, Any, Any]:
        parts = tf.nest.flatten(element)
        shapes = [tf.shape(part, out_type=tf.int64) for part in parts]
        examples = shapes[0][0] if batched else tf.constant(1, tf.int64)
        return (
            examples,
            tf.add_n([_bytes(part) for part in parts]),
            tf.concat([shape[int(batched) :] for shape in shapes], 0),
        )

    examples = total_bytes = 0
    lowest: Any = None
    highest: Any = None
    for counts, sizes, shapes in dataset.map(measure).batch(READ_AT_ONCE).as_numpy_iterator():
        examples, total_bytes = examples + int(counts.sum()), total_bytes + int(sizes.sum())
        lowest = shapes.min(0) if lowest is None else np.minimum(lowest, shapes.min(0))
        highest = shapes.max(0) if highest is None else np.maximum(highest, shapes.max(0))
    return Survey(examples, total_bytes, not np.array_equal(lowest, highest))


def bytes_of_one(spec: Any) -> int | None:
    """Return the bytes of an element of this spec; `None` if they depend on its contents."""
    parts = tf.nest.flatten(spec)
    if not all(part.shape.is_fully_defined() and part.dtype != tf.string for part in parts):
        return None
    return sum(part.shape.num_elements() * part.dtype.size for part in parts)


def _bytes(part: Any) -> Any:
    if part.dtype == tf.string:
        return tf.reduce_sum(tf.cast(tf.strings.length(part), tf.int64))
    return tf.size(part, out_type=tf.int64) * part.dtype.size
