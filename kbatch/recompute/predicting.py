"""Predicting: what a chain cut in a certain way keeps, needs at most, and runs again. Pure, from the costs of its operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from kbatch.recompute.chain import Chain
from kbatch.recompute.costs import Costs
from kbatch.recompute.ordering import Ordering

Stretch = tuple[int, int, bool]  # start, stop, whether it is recomputed


@dataclass(frozen=True)
class Piece:
    """One stretch of a chain.

    Attributes:
        entry: Numbers of the values that it reads from before.
        needs: Numbers of the values that gradients inside need.
        inside: Float, bytes of other tensors that they need.
        again: Float, work to make all of them again.
        outgoing: Float, bytes of the gradients that come in from later pieces.
        transient: Float, the most bytes that one operation's backward pass holds for itself.
        gradients: Float, bytes of the gradients of its weights.
    """

    entry: frozenset[int]
    needs: frozenset[int]
    inside: float
    again: float
    outgoing: float
    transient: float
    gradients: float

    def kept(self, recompute: bool) -> frozenset[int]:
        """Numbers of the values that it keeps from the forward to the backward pass."""
        return self.entry if recompute else self.needs


@dataclass(frozen=True)
class Prediction:
    """What a chain cut in a certain way needs.

    Attributes:
        kept_bytes: Float, kept from the forward to the backward pass.
        peak_bytes: Float, the most at any moment, gradients of the weights among it; variables are not.
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
        return Ordering(self.chain).positions

    def bytes_of(self, numbers: Iterable[int]) -> float:
        """Bytes of the values of these numbers."""
        return sum(self._bytes[number] for number in numbers)

    def predict(self, stretches: Sequence[Stretch]) -> Prediction:
        """What a chain cut into these stretches needs."""
        # What is kept is given up operation by operation, what is made again all at once.
        pieces = [
            (self.piece(begin, end), recompute)
            for start, stop, recompute in stretches
            for begin, end in ([(start, stop)] if recompute else itertools.pairwise(range(start, stop + 1)))
        ]
        kept: set[int] = set()
        inside = peak = gradients = 0.0
        stored = []
        for piece, recompute in pieces:
            kept |= piece.kept(recompute)
            inside += 0.0 if recompute else piece.inside
            stored.append((self.bytes_of(kept) + inside, frozenset(kept)))
        for (piece, recompute), (held, known) in zip(reversed(pieces), reversed(stored), strict=True):
            gradients += piece.gradients
            again = self.bytes_of(piece.needs - known) + piece.inside if recompute else 0.0
            peak = max(peak, held + again + piece.outgoing + piece.transient + gradients)
        work = sum(piece.again for piece, recompute in pieces if recompute)
        return Prediction(stored[-1][0], peak, work / max(self.costs.work, 1.0))

    def _piece(self, start: int, stop: int) -> Piece:
        nodes, costs = self.chain.nodes[start:stop], self.costs.nodes[start:stop]
        written = {number for node in nodes for number in node.writes}
        needs = frozenset(number for cost in costs for number in cost.needs)
        wanted, again = set(needs), 0.0
        for node, cost in zip(reversed(nodes), reversed(costs), strict=True):
            # An operation whose results no gradient inside needs is not run again.
            if wanted.intersection(node.writes) or cost.inside.at(self.batch_size):
                wanted.update(node.reads)
                again += cost.forward
        return Piece(
            frozenset(number for node in nodes for number in node.reads if number not in written),
            needs,
            sum(cost.inside.at(self.batch_size) for cost in costs),
            again,
            self.bytes_of(self.chain.live(stop)),
            max((cost.transient.at(self.batch_size) for cost in costs), default=0.0),
            sum(cost.gradients for cost in costs),
        )
