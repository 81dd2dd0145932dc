"""Cost model: kept bytes, peak and extra work of a list of segments, from the costs of their operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from kbatch.recompute._cut_points import Ordering
from kbatch.recompute._op_costs import Costs
from kbatch.recompute._op_graph import Chain
from kbatch.tracing.size import ALLOCATOR_SLACK

Stretch = tuple[int, int, bool]  # start, stop, whether it is recomputed


@dataclass(frozen=True)
class Piece:
    """One stretch of a chain.

    Attributes:
        entry: Numbers of the values that it reads from before.
        needs: Numbers of the values that gradients inside need.
        inside: Float, bytes of other tensors that they need.
        again: Float, work to make all of them again.
        beside: Float, the most bytes that it holds beside what was kept, if all it needs was. In
            its backward pass: gradients on their way, gradients of its weights, and what an
            operation holds for itself. In its forward pass, which matters where little is trained:
            what it reads and makes.
        beside_again: Float, the same if it is recomputed: what was made again and not given up yet
            is among it.
    """

    entry: frozenset[int]
    needs: frozenset[int]
    inside: float
    again: float
    beside: float
    beside_again: float

    def most(self, recompute: bool) -> float:
        """The most bytes that it holds beside what was kept."""
        return self.beside_again if recompute else self.beside

    def kept(self, recompute: bool) -> frozenset[int]:
        """Numbers of the values that it keeps from the forward to the backward pass."""
        return self.entry if recompute else self.needs


@dataclass(frozen=True)
class Prediction:
    """What a chain cut in a certain way needs.

    Attributes:
        kept_bytes: Float, kept from the forward to the backward pass.
        peak_bytes: Float, the most at any moment as the allocator hands it out. Variables are not
            among it, and gradients of weights only until their segment is done: an optimizer that
            needs all of them first, to clip, to accumulate or to unscale, holds the others too.
        extra: Float, work that is done again as a share of a plain step's.
    """

    kept_bytes: float
    peak_bytes: float
    extra: float


class Predictor:
    """Predicts for one chain and batch size.

    Args:
        chain: The chain.
        costs: Costs of its operations.
        batch_size: Integer, examples per step.
    """

    def __init__(self, chain: Chain, costs: Costs, batch_size: int) -> None:
        self.chain, self.costs, self.batch_size = chain, costs, batch_size
        self._bytes = {number: size.at(batch_size) for number, size in costs.sizes.items()}
        self.piece = lru_cache(None)(self._piece)

    @cached_property
    def cuts(self) -> list[int]:
        """Positions where the chain may be cut, its begin and end among them."""
        return Ordering(self.chain, self.costs.losing).positions

    def bytes_of(self, numbers: Iterable[int]) -> float:
        """Bytes of the values of these numbers."""
        return sum(self._bytes[number] for number in numbers)

    def trains(self, start: int, stop: int) -> bool:
        """Whether a gradient comes to a stretch; where none does, nothing is kept and nothing made again."""
        return any(
            not self.costs.flowing.isdisjoint(node.writes) for node in self.chain.nodes[start:stop]
        )

    def predict(self, stretches: Sequence[Stretch]) -> Prediction:
        """What a chain cut into these stretches needs."""
        # A stretch that is kept gives up what it kept operation by operation, so each of them is a
        # piece.
        pieces = [
            (self.piece(begin, end), recompute)
            for start, stop, recompute in stretches
            for begin, end in (
                [(start, stop)] if recompute else itertools.pairwise(range(start, stop + 1))
            )
        ]
        kept: set[int] = set()
        inside = held = peak = 0.0
        for piece, recompute in pieces:
            kept |= piece.kept(recompute)
            inside += 0.0 if recompute else piece.inside
            held = self.bytes_of(kept) + inside
            peak = max(peak, held + piece.most(recompute))
        work = sum(piece.again for piece, recompute in pieces if recompute)
        return Prediction(held, ALLOCATOR_SLACK * peak, work / max(self.costs.work, 1.0))

    def _piece(self, start: int, stop: int) -> Piece:
        nodes, costs = self.chain.nodes[start:stop], self.costs.nodes[start:stop]
        written = {number for node in nodes for number in node.writes}
        needs = frozenset(number for cost in costs for number in cost.needs)
        wanted, again = set(needs), 0.0
        for node, cost in zip(reversed(nodes), reversed(costs), strict=True):
            # An operation whose results no gradient inside needs is not run again.
            if wanted.intersection(node.writes) or cost.inside.at(self.batch_size):
                wanted.update(cost.rereads)
                again += cost.again
        entry = (
            frozenset(number for node in nodes for number in node.reads if number not in written)
            if self.trains(start, stop)
            else frozenset()
        )
        beside, beside_again = self._most(start, stop, entry)
        insides = [cost.inside.at(self.batch_size) for cost in costs]
        beside = self._with_forward(beside, start, needs, insides)
        return Piece(
            entry,
            needs,
            sum(insides),
            again,
            beside,
            self._with_forward(beside_again, start, entry, [0.0] * len(nodes)),
        )

    def _with_forward(
        self, most: float, start: int, kept: frozenset[int], insides: Sequence[float]
    ) -> float:
        """The most of a piece, if its forward pass may hold more than that beside what it keeps."""
        for position, inside in enumerate(insides, start):
            others, forward = self._forward[position]
            if forward > most:
                writes = kept.intersection(self.chain.nodes[position].writes)
                most = max(
                    most, forward - self.bytes_of(others & kept) - self.bytes_of(writes) - inside
                )
        return most

    @cached_property
    def _forward(self) -> list[tuple[frozenset[int], float]]:
        """Of each operation, the values that others made and that are alive while it runs forward, and all bytes there are then."""
        found = []
        for position, (node, cost) in enumerate(
            zip(self.chain.nodes, self.costs.nodes, strict=True)
        ):
            others = frozenset((*node.reads, *self.chain.live(position + 1))).difference(
                node.writes
            )
            found.append((others, self.bytes_of(others) + cost.made.at(self.batch_size)))
        return found

    def _most(self, start: int, stop: int, entry: frozenset[int]) -> tuple[float, float]:
        """The most that the backward pass of a piece holds at any of its operations, if it is kept and if it is recomputed."""
        made, again = set(entry), 0.0
        left = sum(cost.gradients for cost in self.costs.nodes[start:stop])
        beside = beside_again = 0.0
        for position in range(start, stop):
            # The backward pass comes from the end: here it has given up what later operations
            # needed.
            cost = self.costs.nodes[position]
            again += self.bytes_of(cost.needs - made) + cost.inside.at(self.batch_size)
            made |= cost.needs
            left -= cost.gradients  # its own are part of what it holds
            moving = self._alive[position + 1] + cost.transient.at(self.batch_size) + left
            beside, beside_again = max(beside, moving), max(beside_again, moving + again)
        return beside, beside_again

    @cached_property
    def _alive(self) -> list[float]:
        """Bytes of the values that are alive at each position and get a gradient."""
        flowing = self.costs.flowing
        return [
            self.bytes_of(flowing.intersection(self.chain.live(position)))
            for position in range(len(self.chain.nodes) + 1)
        ]
