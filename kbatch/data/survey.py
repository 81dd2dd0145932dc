"""Survey: what only a whole pass over a dataset tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

READ_AT_ONCE = 64  # elements between two moments in which Ctrl-C is heard


@dataclass(frozen=True)
class Survey:
    """What one pass over a dataset told.

    Attributes:
        examples: Integer, how many there are.
        total_bytes: Integer, what all of them take.
        uneven: Boolean, whether some differ in shape from others.
    """

    examples: int
    total_bytes: int
    uneven: bool


def survey(dataset: tf.data.Dataset, *, batched: bool) -> Survey:
    """Read a dataset once, which fills the caches in it too.

    Args:
        dataset: Dataset that ends.
        batched: Boolean, whether its elements are batches, whose first dimension is not part of an
            example.
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
    """What an element of that spec takes in memory; `None` if only its contents tell."""
    parts = tf.nest.flatten(spec)
    if not all(part.shape.is_fully_defined() and part.dtype != tf.string for part in parts):
        return None
    return sum(part.shape.num_elements() * part.dtype.size for part in parts)


def _bytes(part: Any) -> Any:
    if part.dtype == tf.string:
        return tf.reduce_sum(tf.cast(tf.strings.length(part), tf.int64))
    return tf.size(part, out_type=tf.int64) * part.dtype.size
