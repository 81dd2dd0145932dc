"""Cost model: kept bytes, peak and extra work of a model cut into segments."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kbatch.recompute._costs import ModelCosts
from kbatch.recompute._cut_points import CutPoints
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._plan import Span
from kbatch.runtime.trace import ALLOCATOR_SLACK


@dataclass(frozen=True)
class SegmentCost:
    """Bytes and work of one segment, kept or recomputed.

    Attributes:
        inputs: Numbers of the values that it reads from before; kept if it is recomputed.
        needs: Numbers of the values that its gradients need; kept if it is not recomputed.
        internal_bytes: Float, bytes of the tensors inside of its operations that its gradients
            need; kept if it is not recomputed.
        recompute_work: Float, work of recomputing it.
        peak_if_kept: Float, peak bytes of its backward pass (or forward pass, if larger) in
            addition to what is kept for it: incoming gradients, weight gradients and kernel
            workspace. The forward pass matters where little is trained.
        peak_if_recomputed: Float, the same if it is recomputed. What was recomputed and is not
            released yet counts too.
    """

    inputs: frozenset[int]
    needs: frozenset[int]
    internal_bytes: float
    recompute_work: float
    peak_if_kept: float
    peak_if_recomputed: float

    def peak(self, recompute: bool) -> float:
        """Peak bytes in addition to what is kept for the segment."""
        return self.peak_if_recomputed if recompute else self.peak_if_kept

    def kept(self, recompute: bool) -> frozenset[int]:
        """Numbers of the values that are kept from the forward to the backward pass."""
        return self.inputs if recompute else self.needs


@dataclass(frozen=True)
class Prediction:
    """Memory and work of a model cut into segments.

    Attributes:
        kept_bytes: Float, bytes kept from the forward to the backward pass.
        peak_bytes: Float, peak bytes as the allocator hands them out, not counting variables.
            Weight gradients count only until their segment is done: an optimizer that needs all of
            them first (to clip, to accumulate, to unscale) holds the others too.
        extra_work: Float, work of recomputation as a share of a plain step's work.
    """

    kept_bytes: float
    peak_bytes: float
    extra_work: float


class Predictor:
    """Predicts memory and work for one model and batch size."""

    def __init__(self, graph: OpGraph, costs: ModelCosts, batch_size: int) -> None:
        self.graph, self.costs, self.batch_size = graph, costs, batch_size
        self._bytes = {number: size.at(batch_size) for number, size in costs.sizes.items()}
        self._segments: dict[tuple[int, int], SegmentCost] = {}

    @cached_property
    def cuts(self) -> list[int]:
        """Positions where the model may be cut, its begin and end included."""
        return CutPoints(self.graph, self.costs.loss_positions).positions

    def bytes_of(self, numbers: Iterable[int]) -> float:
        """Bytes of the values of these numbers."""
        return sum(self._bytes[number] for number in numbers)

    def trains(self, start: int, stop: int) -> bool:
        """Whether a gradient comes to a segment; where none does, nothing is kept or recomputed."""
        return any(
            not self.costs.differentiable.isdisjoint(node.writes)
            for node in self.graph.nodes[start:stop]
        )

    def predict(self, spans: Sequence[Span]) -> Prediction:
        """Memory and work of the model, cut into these segments."""
        kept: set[int] = set()
        internal = held = peak = work = 0.0
        for start, stop, recompute in self._single_operations(spans):
            segment = self.segment(start, stop)
            kept |= segment.kept(recompute)
            if recompute:
                work += segment.recompute_work
            else:
                internal += segment.internal_bytes
            held = self.bytes_of(kept) + internal
            peak = max(peak, held + segment.peak(recompute))
        return Prediction(held, ALLOCATOR_SLACK * peak, work / max(self.costs.work, 1.0))

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
        kept, recomputed = self._backward_peaks(start, stop, inputs)
        return SegmentCost(
            inputs=inputs,
            needs=needs,
            internal_bytes=sum(internal),
            recompute_work=self._recompute_work(start, stop, needs),
            peak_if_kept=self._with_forward(kept, start, needs, internal),
            peak_if_recomputed=self._with_forward(recomputed, start, inputs, [0.0] * len(nodes)),
        )

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

    def _backward_peaks(self, start: int, stop: int, inputs: frozenset[int]) -> tuple[float, float]:
        """Peak bytes of a segment's backward pass, if it is kept and if it is recomputed."""
        recomputed, recomputed_bytes = set(inputs), 0.0
        weight_gradients = sum(cost.weight_gradients for cost in self.costs.nodes[start:stop])
        peak_if_kept = peak_if_recomputed = 0.0
        for position in range(start, stop):
            # The backward pass comes from the end: when it is here, it has released what later
            # operations needed.
            cost = self.costs.nodes[position]
            recomputed_bytes += self.bytes_of(cost.needs - recomputed)
            recomputed_bytes += cost.internal.at(self.batch_size)
            recomputed |= cost.needs
            weight_gradients -= cost.weight_gradients  # its own are part of `backward_peak`
            held = self._gradients[position + 1] + cost.backward_peak.at(self.batch_size)
            held += weight_gradients
            peak_if_kept = max(peak_if_kept, held)
            peak_if_recomputed = max(peak_if_recomputed, held + recomputed_bytes)
        return peak_if_kept, peak_if_recomputed

    @cached_property
    def _gradients(self) -> list[float]:
        """Bytes of the gradients of the values that are alive at each position."""
        return [
            self.bytes_of(self.costs.differentiable.intersection(self.graph.live(position)))
            for position in range(len(self.graph.nodes) + 1)
        ]
