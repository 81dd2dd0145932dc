"""The constant answers to try: what could be the best answer that never varies, of some labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kbatch.training.constant_model import shape_of
from kbatch.training.held_out_labels import Part
from kbatch.training.model_outputs import ANY, BOTH, POSITIVE, SHARES, UNIT

EACH = 32  # columns up to which each one is answered alone; of more, the most frequent
MOST = 8  # most frequent columns or values; chosen by hand
QUANTILES = tuple(np.arange(1, 20) / 20)
POWERS = (0.25, 0.5, 2.0, 4.0)  # of class shares, for losses that are no proper scores
ENTRIES = 1 << 22  # numbers of which means and quantiles are taken, evenly spread
TINY = 1e-7
SURE = 20.0  # a logit whose probability rounds to 0 or 1
GAP = 1e-5  # between columns that would be equal; single precision tells it apart at 20
BOUNDS = {UNIT: (0.0, 1.0), POSITIVE: (0.0, np.inf), BOTH: (-1.0, 1.0)}
Named = Iterator[tuple[str, np.ndarray]]


@dataclass(frozen=True)
class Columns:
    """The labels of one output, by the columns of its last axis.

    Attributes:
        rows: Array `(n, columns)` of numbers, or `(n,)` of classes, over examples and places.
        weights: Array of `n` weights, or `None`.
        columns: Integer, how many columns there are.
        whole: Array of the labels of all examples where the output may differ by place, or `None`.
    """

    rows: np.ndarray
    weights: np.ndarray | None
    columns: int
    whole: np.ndarray | None

    @property
    def are_classes(self) -> bool:
        """Whether the labels are numbers of classes, each of which has a column."""
        return self.rows.ndim == 1

    def shares(self, weights: np.ndarray | None, ignored: int | None = None) -> np.ndarray:
        """Return the share of each class, or the mean of each column."""
        if not self.are_classes:
            return np.average(self.rows, axis=0, weights=_some(weights))
        counted = (self.rows >= 0) & (self.rows < self.columns)
        if ignored is not None:
            counted &= self.rows != ignored
        own = None if weights is None else weights[counted]
        counts = np.bincount(self.rows[counted].astype(int), own, self.columns)
        return counts / max(counts.sum(), TINY)


def columns_of(parts: Sequence[Part], place: int, shape: Sequence[int | None]) -> Columns:
    """Return the labels of one output by its columns.

    Args:
        parts: The validation examples.
        place: Integer, which output.
        shape: Shape of the output without the examples' axis.

    Raises:
        ValueError: If the labels have neither the output's shape nor one class per place.
    """
    rows, weights, width = [], [], 1
    for part in parts:
        labels = part.labels[place]
        tail = shape_of(shape, labels)
        width = tail[-1] if tail else 1
        rows.append(_rows(labels, tail, width))
        places = labels.shape if rows[-1].ndim == 1 else (len(labels), *tail[:-1])
        weights.append(_weights(part, place, places, len(rows[-1])))
    lengths = {part.labels[place].shape[1:] for part in parts}
    dense = rows[0].ndim == 2 and len(tail) > 1 and len(lengths) == 1
    whole = np.concatenate([part.labels[place] for part in parts]) if dense else None
    if whole is not None:
        whole = whole[:: 1 + whole.size // ENTRIES].reshape(-1, *tail)
    if rows[0].ndim == 2:
        every = 1 + sum(each.size for each in rows) // ENTRIES
        rows = [each[::every] for each in rows]
        weights = [None if each is None else each[::every] for each in weights]
    used = any(each is not None for each in weights)
    sized = [
        np.ones(len(own)) if each is None else each for own, each in zip(rows, weights, strict=True)
    ]
    return Columns(np.concatenate(rows), np.concatenate(sized) if used else None, width, whole)


def constants(labels: Columns, values: str, ignored: int | None = None) -> dict[str, np.ndarray]:
    """Return constant answers by what they are, plain ones first.

    Args:
        labels: The labels of one output.
        values: String, what the output's values are; see `kbatch.training.model_outputs`.
        ignored: Integer, a class that the metric ignores. Optional.
    """
    found: dict[bytes, tuple[str, np.ndarray]] = {}
    for name, answer in _all(labels, ignored):
        for how, each in _within(name, answer, values):
            if np.isfinite(each).all():
                found.setdefault(_bytes_of(each, labels.columns), (how, each))
    return dict(found.values())


def without_ties(answer: np.ndarray, labels: Columns) -> np.ndarray:
    """Return an answer whose equal columns differ by a little, the more frequent ones above.

    Args:
        answer: Array of one or no dimension, a constant answer.
        labels: The labels of its output.
    """
    order = np.argsort(labels.shares(labels.weights), kind="stable")
    ranks = np.empty(labels.columns)
    ranks[order] = np.arange(labels.columns)
    return np.broadcast_to(answer, (labels.columns,)) + GAP * ranks


def _bytes_of(answer: np.ndarray, columns: int) -> bytes:
    """What tells answers apart that differ by more than rounding."""
    whole = answer if answer.ndim > 1 else np.broadcast_to(answer, (columns,))
    return np.round(whole + 0.0, 9).tobytes()


def _all(labels: Columns, ignored: int | None) -> Named:
    shares = labels.shares(None)
    if labels.are_classes or (labels.columns > 1 and _are_shares(labels.rows)):
        yield from _of_classes(shares, "")
    else:
        yield "mean", shares
        yield "median", np.median(labels.rows, axis=0)
    if ignored is not None and labels.are_classes:
        yield from _of_classes(labels.shares(labels.weights, ignored), " without the ignored class")
    if labels.weights is not None:
        weighted = labels.shares(labels.weights)
        if labels.are_classes or labels.columns > 1:
            yield from _of_classes(weighted, ", weighted")
        yield "weighted mean", weighted
    for number in (0.0, 1.0, 0.5, -1.0, SURE, -SURE):
        yield f"{number:g}", np.asarray(number)
    if not labels.are_classes:
        yield from _of_numbers(labels)


def _of_classes(shares: np.ndarray, which: str) -> Named:
    """Answers that follow the shares of columns: one alone, the first few, ranks, powers."""
    order = np.argsort(-shares, kind="stable")
    count = len(shares)
    alone = order if count <= EACH else (*order[:MOST], order[-1])
    for place in alone:
        yield f"class {place}", np.eye(1, count, place)[0]
    yield f"class shares{which}", shares
    ranks = np.empty(count)
    ranks[order] = np.arange(count, 0, -1)
    yield f"rank of the classes{which}", ranks / (count + 1)
    sizes = range(2, count) if count <= EACH else 2 ** np.arange(1, int(np.log2(count)) + 1)
    for size in sizes:
        chosen = np.zeros(count)
        chosen[order[:size]] = 1.0
        yield f"{size} most frequent classes{which}", chosen
    for power in POWERS:
        raised = np.maximum(shares, 0) ** power
        yield f"class shares{which}, to the power {power:g}", raised / max(raised.sum(), TINY)


def _of_numbers(labels: Columns) -> Named:
    """Answers in the range of the labels."""
    rows, weights = labels.rows, labels.weights
    if labels.whole is not None and not _are_whole(rows):
        yield "mean of each place", labels.whole.mean(axis=0)
        yield "median of each place", np.median(labels.whole, axis=0)
    for share, each in zip(QUANTILES, np.quantile(rows, QUANTILES, axis=0), strict=True):
        yield f"{share:.0%} quantile", each
    yield "lowest", rows.min(axis=0)
    yield "highest", rows.max(axis=0)
    sizes = np.abs(rows)
    for how, own in (("weighted ", weights), ("relative ", _inverse(sizes, weights))):
        if own is not None and own.sum() > 0:
            yield (
                f"{how}median",
                np.array([_median(each, own_) for each, own_ in _pairs(rows, own)]),
            )
    if (rows > -1).all():
        logs = np.average(np.log1p(rows), axis=0, weights=_some(weights))
        yield "logarithmic mean", np.expm1(logs)
    if labels.columns > 1:
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        direction = np.average(rows / np.maximum(lengths, TINY), axis=0, weights=_some(weights))
        yield "mean direction", direction
        yield "opposite of the mean direction", -direction
    else:
        numbers, counts = np.unique(rows, return_counts=True)
        for place in np.argsort(-counts, kind="stable")[: 2 * MOST]:
            yield f"{numbers[place]:g}", np.atleast_1d(numbers[place])


def _within(name: str, answer: np.ndarray, values: str) -> Named:
    """An answer, as far as an output can give it, and as logits where it may be these."""
    if values == SHARES:
        total = answer.sum()
        if answer.ndim and (answer >= 0).all() and total > 0:
            yield name, answer / total
        return
    if values != ANY:
        yield name, np.clip(answer, *BOUNDS[values])
        return
    yield name, answer
    if (answer >= 0).all() and (answer <= 1).all():
        sure = np.clip(answer, TINY, 1 - TINY)
        yield f"{name}, as log-odds", np.log(sure) - np.log1p(-sure)
        yield f"{name}, as logarithms", np.log(np.maximum(answer, TINY))
        if answer.ndim and np.isin(answer, (0, 1)).all():
            yield f"{name}, 1 or -1", 2 * answer - 1


def _rows(labels: np.ndarray, tail: tuple[int, ...], width: int) -> np.ndarray:
    if labels.dtype.kind not in "biuf":
        raise ValueError(f"labels of type {labels.dtype}")
    shape = labels.shape[1:]
    if shape == tail or (width == 1 and shape in (tail[:-1], (*tail, 1))):
        return labels.reshape(-1, width).astype("float64")
    if width > 1 and shape in (tail[:-1], (*tail[:-1], 1)) and _are_whole(labels):
        return labels.reshape(-1).astype("float64")
    raise ValueError(
        "labels have neither the output's shape nor one class per example: "
        f"labels {labels.shape}, output {tail}"
    )


def _weights(part: Part, place: int, places: tuple[int, ...], rows: int) -> np.ndarray | None:
    """The weights of rows, with the mask; a shape that does not fit is left to the metric."""
    given = [each for each in (part.weights[place], part.masks[place]) if each is not None]
    total = None
    for each in given:
        own = np.expand_dims(each, tuple(range(each.ndim, max(len(places), each.ndim))))
        while own.ndim > len(places) and own.shape[-1] == 1:
            own = own[..., 0]
        try:
            flat = np.broadcast_to(own, places).reshape(-1).astype("float64")
        except ValueError:
            continue
        if len(flat) == rows:
            total = flat if total is None else total * flat
    return total


def _some(weights: np.ndarray | None) -> np.ndarray | None:
    return weights if weights is not None and weights.sum() > 0 else None


def _are_whole(labels: np.ndarray) -> bool:
    return bool(np.array_equal(labels, np.round(labels)))


def _are_shares(rows: np.ndarray) -> bool:
    return bool(rows.min() >= 0 and rows.max() <= 1)


def _inverse(sizes: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    inverse = 1 / np.maximum(sizes, TINY)
    return inverse if weights is None else inverse * weights[:, None]


def _pairs(rows: np.ndarray, weights: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for column in range(rows.shape[1]):
        yield rows[:, column], weights if weights.ndim == 1 else weights[:, column]


def _median(numbers: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(numbers, kind="stable")
    sums = np.cumsum(weights[order])
    return float(numbers[order][np.searchsorted(sums, sums[-1] / 2)])
