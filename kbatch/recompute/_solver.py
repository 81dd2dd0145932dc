"""Solver: the cuts of the least extra work within a budget of bytes, by dynamic programming.

The program is of the kind of Kusumoto et al., "A Graph Theoretic Framework of Recomputation
Algorithms for Memory-Efficient Backpropagation" (NeurIPS 2019): it grows a prefix of the model cut
by cut. Of two ways that keep the same values, it drops the one with more work and more bytes.
Three things are our own. Prefixes are those of the call order only; a segment may also be kept; and
the ways are a thinned list of (work, bytes) instead of a table over whole numbers of work.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kbatch.recompute._cost_model import Predictor
from kbatch.recompute._plan import Span
from kbatch.runtime.trace import ALLOCATOR_SLACK

# Cut points that are tried, and ways that are remembered at a cut for one set of kept values. With
# them a plan of ResNet50 takes seconds. Chosen by hand.
MOST_POSITIONS = 96
MOST_WAYS = 64

# Halvings of the budget that look for the lowest peak, to 1/4096 of the plain model's. Chosen by
# hand.
HALVINGS = 12


@dataclass(frozen=True)
class Budget:
    """Bytes that a step may hold, not counting its variables.

    Attributes:
        peak_bytes: Float, peak of the step.
        kept_bytes: Float, bytes kept from the forward to the backward pass.
    """

    peak_bytes: float = float("inf")
    kept_bytes: float = float("inf")


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to cut the model up to a position.

    Attributes:
        work: Float, work of recomputation.
        kept: Float, bytes kept.
        span: The last segment; `None` at the begin of the model.
        before: The way up to that segment.
    """

    work: float
    kept: float
    span: Span | None = None
    before: _Way | None = None


def positions(predictor: Predictor) -> list[int]:
    """The cut points to try: of each few neighbours the one where the fewest bytes are alive."""
    begin, *inner, end = predictor.cuts
    width = max(1, -(-len(inner) // MOST_POSITIONS))
    windows = [inner[first : first + width] for first in range(0, len(inner), width)]

    def rank(position: int) -> tuple[float, float]:
        alive = predictor.bytes_of(predictor.graph.live(position))
        return alive, -_spared_work(predictor, position)

    return [begin, *(min(window, key=rank) for window in windows), end]


def cheapest(predictor: Predictor, budget: Budget) -> list[Span] | None:
    """The segments of the least extra work within a budget, or `None` if no cuts meet it.

    The last segment is never recomputed: its gradients are needed at once.
    """
    at = positions(predictor)
    # By position, and there by the values that are kept already and still alive.
    ways: list[dict[frozenset[int], list[_Way]]] = [{} for _ in at]
    ways[0] = {frozenset(): [_Way(0.0, 0.0)]}
    for first in range(len(at) - 1):
        fronts = {known: _thinned(group) for known, group in ways[first].items()}
        ways[first] = {}
        for second in range(first + 1, len(at)):
            last = second == len(at) - 1
            for recompute in _options(second == first + 1, last):
                _extend(
                    predictor, budget, fronts, ways[second], Span(at[first], at[second], recompute)
                )
    ends = [way for group in ways[-1].values() for way in group]
    best = min(ends, key=lambda way: (way.work, way.kept), default=None)
    return None if best is None else _spans(best)


def _extend(
    predictor: Predictor,
    budget: Budget,
    fronts: dict[frozenset[int], list[_Way]],
    extended: dict[frozenset[int], list[_Way]],
    span: Span,
) -> None:
    """Add to `extended` the ways that go on with one more segment and stay within the budget."""
    start, stop, recompute = span
    segment = predictor.segment(start, stop)
    alive = frozenset(predictor.graph.live(stop))
    kept = segment.kept(recompute)
    most = min(budget.kept_bytes, budget.peak_bytes / ALLOCATOR_SLACK - segment.peak(recompute))
    work, internal = 0.0, segment.internal_bytes
    if recompute:
        work, internal = segment.recompute_work, 0.0
    noted = Span(start, stop, recompute and predictor.trains(start, stop))
    for known, group in fronts.items():
        more = predictor.bytes_of(kept - known) + internal
        fitting = [
            _Way(way.work + work, way.kept + more, noted, way)
            for way in group
            if way.kept + more <= most
        ]
        if fitting:
            extended.setdefault((known | kept) & alive, []).extend(fitting)


def lowest(predictor: Predictor) -> list[Span]:
    """The segments of the lowest peak, found by halving the budget."""
    plain = [Span(0, len(predictor.graph.nodes), False)]
    best, high, low = plain, predictor.predict(plain).peak_bytes, 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        spans = cheapest(predictor, Budget(peak_bytes=middle))
        if spans is None:
            low = middle
        else:
            high = middle
            best = min(best, spans, key=lambda each: predictor.predict(each).peak_bytes)
    return best


def uniform(predictor: Predictor, count: int) -> list[Span]:
    """Segments that would keep about the same bytes, all but the last recomputed."""
    at = positions(predictor)
    total = [0.0]
    for begin, end in itertools.pairwise(at):
        segment = predictor.segment(begin, end)
        total.append(total[-1] + predictor.bytes_of(segment.needs) + segment.internal_bytes)
    cuts = {0, len(predictor.graph.nodes)}
    for part in range(1, count):
        share = total[-1] * part / count
        nearest = min(range(len(at)), key=lambda index: abs(total[index] - share))
        cuts.add(at[nearest])
    return of_cuts(sorted(cuts))


def of_cuts(cuts: Sequence[int]) -> list[Span]:
    """The segments between positions, all but the last recomputed."""
    return [Span(start, stop, stop != cuts[-1]) for start, stop in itertools.pairwise(cuts)]


def _spared_work(predictor: Predictor, position: int) -> float:
    """Work that a cut after an operation saves: the result need not be recomputed.

    It saves nothing if a gradient before the cut needs the result.
    """
    node, cost = predictor.graph.nodes[position - 1], predictor.costs.nodes[position - 1]
    return 0.0 if cost.needs.intersection(node.writes) else cost.recompute_work


def _options(neighbours: bool, last: bool) -> list[bool]:
    """The options to try for a segment: `False` to keep it, `True` to recompute it.

    Keeping is tried only between neighbouring cut points, since keeping a longer segment equals
    keeping its parts. The last segment is never recomputed.
    """
    options = []
    if neighbours:
        options.append(False)
    if not last:
        options.append(True)
    return options


def _thinned(ways: list[_Way]) -> list[_Way]:
    """The ways that no other beats in both work and bytes, `MOST_WAYS` of them at most."""
    front: list[_Way] = []
    for way in sorted(ways, key=lambda way: (way.work, way.kept)):
        if not front or way.kept < front[-1].kept:
            front.append(way)
    if len(front) > MOST_WAYS:
        step = (len(front) - 1) / (MOST_WAYS - 1)
        front = [front[round(index * step)] for index in range(MOST_WAYS)]
    return front


def _spans(way: _Way) -> list[Span]:
    """The segments of a way, with neighbours that are kept merged into one."""
    spans: list[Span] = []
    current: _Way | None = way
    while current is not None and current.span is not None:
        start, stop, recompute = current.span
        if spans and not recompute and not spans[0].recompute:
            stop = spans.pop(0).stop
        spans.insert(0, Span(start, stop, recompute))
        current = current.before
    return spans
