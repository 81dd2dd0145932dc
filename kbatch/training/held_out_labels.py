"""The labels of the validation data: batch by batch, with the weights and masks of each output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kbatch.data.validation import Data
from kbatch.training.model_outputs import Outputs

MOST_ENTRIES = 1 << 27  # labels that are read at most; chosen by hand
SHOWN = 5  # digits of a label in a sentence


@dataclass(frozen=True)
class Part:
    """Some validation examples: what Keras measures together.

    Attributes:
        labels: Array of each output.
        weights: Array of each output, or `None` for each.
        masks: Array of each output, or `None` for each.
    """

    labels: tuple[np.ndarray, ...]
    weights: tuple[np.ndarray | None, ...]
    masks: tuple[np.ndarray | None, ...]

    @property
    def examples(self) -> int:
        """Integer, how many there are."""
        return len(self.labels[0])

    def rows(self, start: int, stop: int) -> Part:
        """Return some of the examples."""
        return self._taken(slice(start, stop))

    def each(self, every: int) -> Part:
        """Return one of every so many examples."""
        return self._taken(slice(None, None, every))

    def _taken(self, rows: slice) -> Part:
        return Part(
            tuple(own[rows] for own in self.labels),
            tuple(None if own is None else own[rows] for own in self.weights),
            tuple(None if own is None else own[rows] for own in self.masks),
        )


def joined(parts: Sequence[Part]) -> Part | None:
    """Return parts as one; `None` if their shapes differ, or only some have weights or masks."""
    each = ((*part.labels, *part.weights, *part.masks) for part in parts)
    columns = list(zip(*each, strict=True))
    if any(len(_shapes(column)) > 1 for column in columns):
        return None
    flat: list[Any] = [None if each[0] is None else np.concatenate(each) for each in columns]
    count = len(parts[0].labels)
    return Part(tuple(flat[:count]), tuple(flat[count : 2 * count]), tuple(flat[2 * count :]))


def _shapes(arrays: Sequence[Any]) -> set[Any]:
    return {None if each is None else each.shape[1:] for each in arrays}


def read(data: Data, outputs: Outputs) -> tuple[Part, ...]:
    """Return the validation labels in batches, evenly spread ones if they are very many.

    Args:
        data: Training and validation data.
        outputs: The outputs of the model.

    Raises:
        ValueError: If there is not one array of labels for each output.
    """
    parts: list[Part] = []
    every = 1
    for number, batch in enumerate(data.validation):
        if number % every:
            continue
        x, y, weights = keras.utils.unpack_x_y_sample_weight(tuple(batch))
        count = len(outputs.shapes)
        labels = tuple(np.asarray(each) for each in outputs.flat(y))
        if len(labels) != count:
            raise ValueError(f"{len(labels)} arrays of labels for {count} outputs")
        masks = [None] * count if outputs.masks is None else outputs.masks(x)
        part = Part(labels, _of_outputs(weights, outputs), tuple(masks))
        if not parts:
            batches = data.fingerprint["validation"]["examples"] / part.examples
            every = max(math.ceil(batches * sum(each.size for each in labels) / MOST_ENTRIES), 1)
        parts.append(part)
    return tuple(parts)


def of_one_value(data: Data) -> str:
    """Return a sentence if all validation labels of an output are the same, else nothing."""
    first: list[Any] = []
    same: list[bool] = []
    for batch in data.validation:
        labels = [np.asarray(each) for each in keras.tree.flatten(batch[1])]
        if not first:
            first = [each[:1] for each in labels]
            same = [True] * len(first)
        pairs = zip(first, labels, strict=True)
        same = [
            known and own.shape[1:] == each.shape[1:] and bool((each == own).all())
            for known, (own, each) in zip(same, pairs, strict=True)
        ]
        if not any(same):
            return ""
    which = [_value(label[0]) for label, alike in zip(first, same, strict=True) if alike]
    if not which or data.fingerprint["validation"]["examples"] < 2:
        return ""
    return (
        f"all {data.fingerprint['validation']['examples']:,} validation labels are the same "
        f"({'; '.join(which)}): what always answers that cannot be beaten; shuffle the examples "
        "before they are split"
    )


def _value(label: np.ndarray) -> str:
    """A label in a sentence; of one-hot labels the class."""
    if label.ndim == 1 and label.size > 1 and np.count_nonzero(label) == 1 and label.max() == 1:
        return f"class {int(label.argmax())}"
    if label.size == 1:
        return str(label.reshape(-1)[0])
    return f"of shape {label.shape}"


def _of_outputs(weights: Any, outputs: Outputs) -> tuple[np.ndarray | None, ...]:
    """The weights of each output; a single array of them counts for all outputs."""
    count = len(outputs.shapes)
    if weights is None:
        return (None,) * count
    flat = [np.asarray(each) for each in outputs.flat(weights)]
    return tuple(flat) if len(flat) == count else (flat[0],) * count
