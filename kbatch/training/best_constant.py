"""The search for the best constant answer: many on a part of the labels, the best few on all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kbatch.training.constant_model import ConstantModel, shape_of
from kbatch.training.constants import TINY, Columns, columns_of, constants, without_ties
from kbatch.training.held_out_labels import Part, joined
from kbatch.training.model_outputs import BOTH, POSITIVE, SHARES, UNIT, Outputs

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
Value = Callable[[np.ndarray, Sequence[Part]], float]


@dataclass(frozen=True)
class Best:
    """The best constant answer.

    Attributes:
        value: Float, what the metric gives for it.
        how: String, what it is.
        answer: Array, the answer.
    """

    value: float
    how: str
    answer: np.ndarray


class Labels:
    """The validation labels: all of them, and the part on which constants are tried first.

    Args:
        parts: The batches of the validation data.
        outputs: The outputs of the model.
        measure: Function that gives the metric of a constant for some batches.

    Attributes:
        some: Batches to try constants on.
        all: Batches to compare the best few on; joined where that makes no difference.
        last: Batches to measure chance on.
    """

    def __init__(self, parts: Sequence[Part], outputs: Outputs, measure: Value) -> None:
        self.some: Sequence[Part] = _spread(parts, BATCHES_SCREENED)
        self.all: Sequence[Part] = _spread(parts, MOST_BATCHES)
        self.last: Sequence[Part] = self.all
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
    parts: Sequence[Part],
    outputs: Outputs,
    ignored: int | None,
) -> tuple[float, list[Best]]:
    """Return the best value of a metric over constant answers, and the answer of each output.

    Args:
        model: The constant model, compiled as the user's.
        name: String, the metric or loss in Keras' logs, without `val_`.
        direction: `"max"` or `"min"`.
        parts: The batches of the validation data.
        outputs: The outputs of the model.
        ignored: Integer, a class that the metric ignores, or `None`.

    Raises:
        ValueError: If labels do not fit the outputs, or no constant has a finite value.
    """
    answers: list[np.ndarray] = [np.zeros(()) for _ in outputs.shapes]
    tried = {}
    for place in model.places(name):
        columns = columns_of(parts, place, outputs.shapes[place])
        tried[place] = (columns, constants(columns, outputs.ranges[place], ignored))
        answers[place] = next(iter(tried[place][1].values()))
    found, last = [], parts
    for place, (columns, named) in tried.items():

        def measure(answer: np.ndarray, some: Sequence[Part], place: int = place) -> float:
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
    if not columns.are_classes and values not in (SHARES, UNIT):
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
    if values == SHARES:
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


def _measures_alike(measure: Value, parts: Sequence[Part]) -> bool:
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


def _spread(parts: Sequence[Part], count: int) -> Sequence[Part]:
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
