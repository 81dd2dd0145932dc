"""Solver: what a model cut into segments costs, and the cuts of the least work within a budget.

The dynamic program is of the kind of Kusumoto et al., "A Graph Theoretic Framework of Recomputation
Algorithms for Memory-Efficient Backpropagation" (NeurIPS 2019): it grows a prefix of the model cut
by cut. Of two ways that keep the same values, it drops the one with more work and more bytes.
Three things are our own. Prefixes are those of the call order only; a segment may also be kept; and
the ways are a thinned list of (work, bytes) instead of a table over whole numbers of work.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kbatch.recompute._costs import ModelCosts
from kbatch.recompute._exactness import CutPoints
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._plan import Span
from kbatch.runtime.trace import ALLOCATOR_SLACK, Size

NO_LOSS = Size()


@dataclass(frozen=True)
class SegmentCost:
    """Bytes and work of one segment, kept or recomputed."""

    inputs: frozenset[int]  # the values that it reads from before; kept if it is recomputed
    needs: frozenset[int]  # the values that its gradients need; kept if it is not recomputed
    internal_bytes: float  # of the tensors inside of its operations that its gradients need
    recompute_work: float
    # Of its backward pass (or forward pass, if larger) in addition to what is kept for it: incoming
    # gradients, weight gradients and kernel workspace. The forward pass matters where little is
    # trained. If it is recomputed, what was recomputed and is not released yet counts too.
    peak_if_kept: float
    peak_if_recomputed: float
    peak_if_plain: float  # kept, in a model that recomputes nothing

    def peak(self, recompute: bool) -> float:
        """Peak bytes in addition to what is kept for the segment."""
        return self.peak_if_recomputed if recompute else self.peak_if_kept

    def kept(self, recompute: bool) -> frozenset[int]:
        """Numbers of the values that are kept from the forward to the backward pass."""
        return self.inputs if recompute else self.needs


@dataclass(frozen=True)
class CutCosts:
    """Memory and work of a model cut into segments."""

    kept_bytes: float  # from the forward to the backward pass
    # As the allocator hands them out, not counting variables. Weight gradients count only until
    # their segment is done: an optimizer that needs all of them first (to clip, to accumulate, to
    # unscale) holds the others too.
    peak_bytes: float
    extra_work: float  # of recomputation, as a share of a plain step's work


class Predictor:
    """Predicts memory and work for one model and batch size."""

    def __init__(
        self,
        graph: OpGraph,
        costs: ModelCosts,
        batch_size: int,
        cuts: Sequence[int] | None = None,
        loss: Size = NO_LOSS,
    ) -> None:
        self.graph, self.costs, self.batch_size = graph, costs, batch_size
        self.loss = loss  # bytes of the loss with the gradients of the outputs
        # Positions where the model may be cut, its begin and end included.
        self.cuts = self.cut_points.positions if cuts is None else cuts
        self._bytes = {number: size.at(batch_size) for number, size in costs.sizes.items()}
        self._segments: dict[tuple[int, int], SegmentCost] = {}

    @cached_property
    def cut_points(self) -> CutPoints:
        """Where a cut keeps the order of each sum of gradients."""
        return CutPoints(self.graph, self.costs.loss_positions, self.costs.forks)

    @cached_property
    def reordering(self) -> Predictor:
        """The same, where the gradients of a weight may be summed in another order."""
        cuts = self.cut_points.outside(self.cut_points.of_values)
        return Predictor(self.graph, self.costs, self.batch_size, cuts, self.loss)

    def bytes_of(self, numbers: Iterable[int]) -> float:
        """Bytes of the values of these numbers."""
        return sum(self._bytes[number] for number in numbers)

    def trains(self, start: int, stop: int) -> bool:
        """Whether a gradient comes to a segment; where none does, nothing is kept or recomputed."""
        return any(
            not self.costs.differentiable.isdisjoint(node.writes)
            for node in self.graph.nodes[start:stop]
        )

    def predict(self, spans: Sequence[Span]) -> CutCosts:
        """Memory and work of the model, cut into these segments."""
        kept: set[int] = set()
        internal = held = peak = work = 0.0
        is_plain = not any(recompute for _, _, recompute in spans)
        for start, stop, recompute in self._single_operations(spans):
            segment = self.segment(start, stop)
            kept |= segment.kept(recompute)
            if recompute:
                work += segment.recompute_work
            else:
                internal += segment.internal_bytes
            held = self.bytes_of(kept) + internal
            own = segment.peak_if_plain if is_plain else segment.peak(recompute)
            peak = max(peak, held + own)
        return CutCosts(held, ALLOCATOR_SLACK * peak, work / max(self.costs.work, 1.0))

    def _single_operations(self, spans: Sequence[Span]) -> Iterable[Span]:
        """The segments, with each one that is kept split into its operations.

        A segment that is kept releases what it kept operation by operation.
        """
        for start, stop, recompute in spans:
            if recompute:
                yield Span(start, stop, True)
            else:
                for begin, end in itertools.pairwise(range(start, stop + 1)):
                    yield Span(begin, end, False)

    def segment(self, start: int, stop: int) -> SegmentCost:
        """The costs of one segment; computed once."""
        if (start, stop) not in self._segments:
            self._segments[start, stop] = self._segment_cost(start, stop)
        return self._segments[start, stop]

    def _segment_cost(self, start: int, stop: int) -> SegmentCost:
        nodes, costs = self.graph.nodes[start:stop], self.costs.nodes[start:stop]
        needs = frozenset(number for cost in costs for number in cost.needs)
        inputs: frozenset[int] = frozenset()
        if self.trains(start, stop):
            written = {number for node in nodes for number in node.writes}
            read = {number for node in nodes for number in node.reads}
            inputs = frozenset(read - written)
        internal = [cost.internal.at(self.batch_size) for cost in costs]
        kept, recomputed, plain = self._backward_peaks(start, stop, inputs)
        loss_peak = self._loss_peak(stop, needs)
        return SegmentCost(
            inputs=inputs,
            needs=needs,
            internal_bytes=sum(internal),
            recompute_work=self._recompute_work(start, stop, needs),
            peak_if_kept=max(self._with_forward(kept, start, needs, internal), loss_peak),
            peak_if_recomputed=self._with_forward(recomputed, start, inputs, [0.0] * len(nodes)),
            peak_if_plain=max(self._with_forward(plain, start, needs, internal), loss_peak),
        )

    def _loss_peak(self, stop: int, kept: frozenset[int]) -> float:
        """Bytes of the loss, its gradients and the outputs that are not kept, after the last one.

        The last segment is never recomputed.
        """
        if stop < len(self.graph.nodes):
            return 0.0
        return self.loss.at(self.batch_size) + self.bytes_of(set(self.graph.outputs) - kept)

    def _recompute_work(self, start: int, stop: int, needs: frozenset[int]) -> float:
        """Work of recomputing a segment.

        Operations whose results no gradient inside needs are not run.
        """
        work, needed = 0.0, set(needs)
        for position in reversed(range(start, stop)):
            node, cost = self.graph.nodes[position], self.costs.nodes[position]
            if needed.intersection(node.writes) or cost.internal.at(self.batch_size):
                needed.update(cost.recompute_reads)
                work += cost.recompute_work
        return work

    def _with_forward(
        self, peak: float, start: int, kept: frozenset[int], internal: Sequence[float]
    ) -> float:
        """The peak of a segment's backward pass, or of its forward pass if that is larger."""
        for position, inside in enumerate(internal, start):
            others, forward = self._forward[position]
            if forward > peak:
                writes = kept.intersection(self.graph.nodes[position].writes)
                counted = self.bytes_of(others & kept)
                peak = max(peak, forward - counted - self.bytes_of(writes) - inside)
        return peak

    @cached_property
    def _forward(self) -> list[tuple[frozenset[int], float]]:
        """For each operation's forward pass: the other values that are alive, and all bytes."""
        passes = []
        for position, node in enumerate(self.graph.nodes):
            alive = frozenset((*node.reads, *self.graph.live(position + 1)))
            others = alive.difference(node.writes)
            allocated = self.costs.nodes[position].forward_peak.at(self.batch_size)
            passes.append((others, self.bytes_of(others) + allocated))
        return passes

    def _backward_peaks(
        self, start: int, stop: int, inputs: frozenset[int]
    ) -> tuple[float, float, float]:
        """Peak bytes of a segment's backward pass, if it is kept, recomputed, or plain."""
        recomputed, recomputed_bytes = set(inputs), 0.0
        weight_gradients = sum(cost.weight_gradients for cost in self.costs.nodes[start:stop])
        peak_if_kept = peak_if_recomputed = peak_if_plain = 0.0
        for position in range(start, stop):
            # The backward pass comes from the end: when it is here, it has released what later
            # operations needed.
            cost = self.costs.nodes[position]
            recomputed_bytes += self.bytes_of(cost.needs - recomputed)
            recomputed_bytes += cost.internal.at(self.batch_size)
            recomputed |= cost.needs
            weight_gradients -= cost.weight_gradients  # its own are part of `backward_peak`
            held = self._gradients[position + 1] + weight_gradients
            in_turn = held + cost.backward_peak.at(self.batch_size)
            peak_if_kept = max(peak_if_kept, in_turn)
            peak_if_recomputed = max(peak_if_recomputed, in_turn + recomputed_bytes)
            peak_if_plain = max(peak_if_plain, held + cost.plain_backward_peak.at(self.batch_size))
        return peak_if_kept, peak_if_recomputed, peak_if_plain

    @cached_property
    def _gradients(self) -> list[float]:
        """Bytes of the gradients of the values that are alive at each position."""
        return [
            self.bytes_of(self.costs.differentiable.intersection(self.graph.live(position)))
            for position in range(len(self.graph.nodes) + 1)
        ]


# Cut points that are tried, and ways that are remembered at a cut for one set of kept values. With
# them a plan of ResNet50 takes seconds. Chosen by hand.
MOST_POSITIONS = 96
MOST_WAYS = 64

# Halvings of the budget that look for the lowest peak, to 1/4096 of the plain model's. Chosen by
# hand.
HALVINGS = 12


@dataclass(frozen=True)
class Budget:
    """Bytes that a step may hold, not counting its variables."""

    peak_bytes: float = float("inf")
    kept_bytes: float = float("inf")  # from the forward to the backward pass


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to cut the model up to a position."""

    work: float  # of recomputation
    kept: float  # bytes
    span: Span | None = None  # the last segment; `None` at the begin of the model
    before: _Way | None = None  # up to that segment


def whole(graph: OpGraph) -> list[Span]:
    """The plain model as one segment."""
    return [Span(0, len(graph.nodes), False)]


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
    if predictor.predict(whole(predictor.graph)).peak_bytes > budget.peak_bytes:
        # Ways without any recomputation were extended as if they had one.
        ends = [way for way in ends if any(span.recompute for span in _spans(way))]
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
    plain = whole(predictor.graph)
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
