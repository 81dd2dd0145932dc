"""Best constant: the answer, the same for each example, that a metric likes best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kbatch.training.metrics import (
    ANY,
    BOTH,
    POSITIVE,
    SHARES_OF_ONE,
    UNIT,
    ConstantModel,
    LabelPart,
    Outputs,
    joined,
    shape_of,
)

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
    """The labels of one output, by the columns of its last axis."""

    # array `(n, columns)` of numbers, or `(n,)` of classes, over examples and places
    rows: np.ndarray
    weights: np.ndarray | None
    columns: int  # how many columns there are
    # the labels of all examples where the output may differ by place, or `None`
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


def columns_of(parts: Sequence[LabelPart], place: int, shape: Sequence[int | None]) -> Columns:
    """Return the labels of one output by its columns."""
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
    """Return constant answers by what they are, plain ones first."""
    found: dict[bytes, tuple[str, np.ndarray]] = {}
    for name, answer in _all(labels, ignored):
        for how, each in _within(name, answer, values):
            if np.isfinite(each).all():
                found.setdefault(_bytes_of(each, labels.columns), (how, each))
    return dict(found.values())


def without_ties(answer: np.ndarray, labels: Columns) -> np.ndarray:
    """Return an answer whose equal columns differ by a little, the more frequent ones above."""
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
    if values == SHARES_OF_ONE:
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


def _weights(part: LabelPart, place: int, places: tuple[int, ...], rows: int) -> np.ndarray | None:
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


ROWS = 1 << 22  # values of an answer that are made at once; chosen by hand
SCREENED = 1 << 18  # values of an answer on which all constants are tried; chosen by hand
FEW = 3  # constants that are tried on all labels
BATCHES_SCREENED, MOST_BATCHES = 16, 512  # where the metric of a batch needs the batch as it is
REFINED = 4  # columns up to which the best constant is refined, one after the other
STEPS = 24  # of a golden section, which narrows a range to 1e-5 of it
GOLDEN = (math.sqrt(5) - 1) / 2
NEAR = 0.01  # of the range: how far a number moves to see whether the metric changes
LOGITS = 3.0  # how far the best log-odds may be from the best of those tried
SAME = 1e-6  # relative; what rounding in single precision makes of equal values
Value = Callable[[np.ndarray, Sequence[LabelPart]], float]


@dataclass(frozen=True)
class Best:
    """The best constant answer."""

    value: float  # what the metric gives for it
    how: str  # what it is
    answer: np.ndarray


class Labels:
    """The validation labels: all of them, and the part on which constants are tried first.

    Attributes:
        some: Batches to try constants on.
        all: Batches to compare the best few on; joined where that makes no difference.
        last: Batches to measure chance on.
    """

    def __init__(self, parts: Sequence[LabelPart], outputs: Outputs, measure: Value) -> None:
        self.some: Sequence[LabelPart] = _spread(parts, BATCHES_SCREENED)
        self.all: Sequence[LabelPart] = _spread(parts, MOST_BATCHES)
        self.last: Sequence[LabelPart] = self.all
        whole = joined(parts)
        if whole is None or not _measures_alike(measure, parts):
            return
        pairs = zip(outputs.shapes, whole.labels, strict=True)
        entries = max(math.prod(shape_of(shape, labels)) for shape, labels in pairs)
        size = max(ROWS // entries, 1)
        self.all = tuple(
            whole.rows(start, start + size) for start in range(0, whole.examples, size)
        )
        few = max(SCREENED // entries, 1)
        self.some = (whole.each(max(math.ceil(whole.examples / few), 1)),)
        if len(parts) > MOST_BATCHES:
            self.last = self.all

    @property
    def some_are_all(self) -> bool:
        """Whether constants are tried on all labels at once."""
        return sum(each.examples for each in self.some) == sum(each.examples for each in self.all)


def best_constant(
    model: ConstantModel,
    name: str,
    direction: str,
    parts: Sequence[LabelPart],
    outputs: Outputs,
    ignored: int | None,
) -> tuple[float, list[Best]]:
    """Return the best value of a metric over constant answers, and the answer of each output."""
    answers: list[np.ndarray] = [np.zeros(()) for _ in outputs.shapes]
    tried = {}
    for place in model.places(name):
        columns = columns_of(parts, place, outputs.shapes[place])
        tried[place] = (columns, constants(columns, outputs.ranges[place], ignored))
        answers[place] = next(iter(tried[place][1].values()))
    found, last = [], parts
    for place, (columns, named) in tried.items():

        def measure(answer: np.ndarray, some: Sequence[LabelPart], place: int = place) -> float:
            changed = [*answers[:place], answer, *answers[place + 1 :]]
            return model.value(name, changed, some)

        labels = Labels(parts, outputs, measure)
        named = _comparable(measure, labels, named, columns, direction)
        best = _best(measure, labels, named, direction)
        if not model.changes_in_steps(name):
            best = _refined(measure, labels, best, columns, outputs.ranges[place], direction)
        answers[place], last = best.answer, labels.last
        found.append(best)
    value = model.value(name, answers, last)
    if not math.isfinite(value):
        raise ValueError(f"it is {value} for a constant answer")
    return value, found


def _best(measure: Value, labels: Labels, named: dict[str, np.ndarray], direction: str) -> Best:
    """The best of the named constants: all on some labels, the best few on all."""
    first = [Best(measure(each, labels.some), how, each) for how, each in named.items()]
    finite = [each for each in first if math.isfinite(each.value)]
    if not finite:
        raise ValueError("no constant answer has a finite value")
    ordered = sorted(finite, key=lambda each: _rank(each.value, direction))
    plain = next(each for each in finite if _close(each.value, ordered[0].value))
    if labels.some_are_all:
        return plain
    chosen = list({each.how: each for each in (plain, *ordered)}.values())[:FEW]
    again = [Best(measure(each.answer, labels.all), each.how, each.answer) for each in chosen]
    return min(again, key=lambda each: _rank(each.value, direction))


def _comparable(
    measure: Value,
    labels: Labels,
    named: dict[str, np.ndarray],
    columns: Columns,
    direction: str,
) -> dict[str, np.ndarray]:
    """The constants, without ties where a metric of ranks counts those in favour of an answer.

    The label is among the first k of equal numbers whatever it is; no model's numbers are equal.
    """
    tied = np.asarray(1 / columns.columns)
    if columns.columns < 3:
        return named
    parted = measure(without_ties(tied, columns), labels.some)
    whole = measure(tied, labels.some)
    if not math.isfinite(whole) or _rank(parted, direction) <= _rank(whole, direction) + NEAR:
        return named
    return {
        how: each if each.ndim > 1 else without_ties(each, columns) for how, each in named.items()
    }


def _refined(
    measure: Value, labels: Labels, best: Best, columns: Columns, values: str, direction: str
) -> Best:
    """A better constant near the best one, where the metric changes with it smoothly."""
    if best.answer.ndim > 1 or columns.columns > REFINED:
        return best
    start = np.broadcast_to(best.answer, (columns.columns,)).astype("float64")
    free, bound = _free(start, values)
    widths = np.full(len(free), LOGITS)
    if not columns.are_classes and values not in (SHARES_OF_ONE, UNIT):
        widths = np.maximum(np.ptp(columns.rows, axis=0) / 2, TINY)
    for _ in range(1 if len(free) == 1 else 2):
        for column in range(len(free)):

            def moved(number: float, column: int = column, free: np.ndarray = free) -> np.ndarray:
                return np.where(np.arange(len(free)) == column, number, free)

            def rank(number: float, moved: Callable[[float], np.ndarray] = moved) -> float:
                return _rank(measure(bound(moved(number)), labels.some), direction)

            near = free[column] + widths[column] * NEAR * np.array([-1, 0, 1])
            if len({rank(number) for number in near}) > 1:  # else it changes in steps
                free = moved(_golden(rank, free[column], widths[column]))
        widths = widths / 4
    tried = [start, bound(free), *_nearest(bound(free), columns)]
    own, *found = [Best(measure(each, labels.all), _words(each), each) for each in tried]
    better = min([own, *found], key=lambda each: _rank(each.value, direction))
    return best if _close(own.value, better.value) else better


def _golden(rank: Callable[[float], float], middle: float, width: float) -> float:
    """The best number around a middle one by golden section; the middle one if none is better."""
    low, high = middle - width, middle + width
    inner = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)]
    ranks = [rank(number) for number in inner]
    for _ in range(STEPS):
        if ranks[0] <= ranks[1]:
            high, inner[1], ranks[1] = inner[1], inner[0], ranks[0]
            inner[0] = high - GOLDEN * (high - low)
            ranks[0] = rank(inner[0])
        else:
            low, inner[0], ranks[0] = inner[0], inner[1], ranks[1]
            inner[1] = low + GOLDEN * (high - low)
            ranks[1] = rank(inner[1])
    found = (low + high) / 2
    return found if rank(found) < rank(middle) else middle


def _free(answer: np.ndarray, values: str) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """An answer as numbers without bounds, and the way back."""
    if values == SHARES_OF_ONE:
        return np.log(np.maximum(answer, 1e-4)), _softmax
    if values == UNIT:
        sure = np.clip(answer, 1e-4, 1 - 1e-4)
        return np.log(sure) - np.log1p(-sure), lambda free: 1 / (1 + np.exp(-free))
    if values == POSITIVE:
        return answer, lambda free: np.maximum(free, 0)
    if values == BOTH:
        return answer, lambda free: np.clip(free, -1, 1)
    return answer, lambda free: free


def _softmax(free: np.ndarray) -> np.ndarray:
    raised = np.exp(free - free.max())
    return np.asarray(raised / raised.sum())


def _nearest(answer: np.ndarray, columns: Columns) -> Iterator[np.ndarray]:
    """The labels next to an answer, where a metric of absolute differences has its best."""
    if columns.are_classes:
        return
    for side in (np.less_equal, np.greater_equal):
        near = answer.copy()
        for column in range(len(answer)):
            own = columns.rows[:, column]
            beside = own[side(own, answer[column])]
            if beside.size:
                near[column] = beside[np.abs(beside - answer[column]).argmin()]
        yield near


def _measures_alike(measure: Value, parts: Sequence[LabelPart]) -> bool:
    """Whether a metric is the same for batches that are joined or cut."""
    few = dict.fromkeys([0, min(1, len(parts) - 1), len(parts) - 1])
    own = [parts[place] for place in few]
    whole = joined(own)
    if whole is None or whole.examples == 1:
        return False
    cut = [whole.rows(0, 1), whole.rows(1, whole.examples)]
    for answer in (np.asarray(0.3), np.asarray(0.9)):
        values = [measure(answer, some) for some in (own, [whole], cut)]
        if not all(_close(each, values[0]) for each in values):
            return False
    return True


def _spread(parts: Sequence[LabelPart], count: int) -> Sequence[LabelPart]:
    """At most so many batches, evenly spread."""
    if len(parts) <= count:
        return parts
    return tuple(parts[place] for place in np.linspace(0, len(parts) - 1, count).astype(int))


def _rank(value: float, direction: str) -> float:
    """A number that is lower for a better value; NaN is the worst."""
    if math.isnan(value):
        return math.inf
    return -value if direction == "max" else value


def _close(first: float, second: float) -> bool:
    return first == second or abs(first - second) <= SAME * max(abs(first), abs(second), TINY)


def _words(answer: np.ndarray) -> str:
    return ", ".join(f"{each:.4g}" for each in answer)
