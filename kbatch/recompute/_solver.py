"""Solver: the cuts of the least extra work under a budget of bytes, by dynamic programming over cut points."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from kbatch.recompute._cost_model import Piece, Predictor, Stretch
from kbatch.tracing.size import ALLOCATOR_SLACK

MOST_POSITIONS, MOST_LABELS = 96, 64
HALVINGS = 12


@dataclass(frozen=True)
class Budget:
    """What a step may hold beside its variables.

    Attributes:
        peak_bytes: Float, at any moment.
        kept_bytes: Float, kept from the forward to the backward pass.
    """

    peak_bytes: float = float("inf")
    kept_bytes: float = float("inf")


@dataclass(frozen=True, slots=True)
class _Label:
    """One way to cut the chain up to a position."""

    work: float
    kept: float
    stretch: Stretch | None = None
    before: _Label | None = None


def positions(predictor: Predictor) -> list[int]:
    """Where it may be worth cutting: of each few neighbours the one where the fewest bytes are alive."""
    begin, *inner, end = predictor.cuts
    width = max(1, -(-len(inner) // MOST_POSITIONS))
    windows = (inner[first : first + width] for first in range(0, len(inner), width))
    return [
        begin,
        *(
            min(
                window,
                key=lambda position: (_alive(predictor, position), -_spared(predictor, position)),
            )
            for window in windows
        ),
        end,
    ]


def cheapest(predictor: Predictor, budget: Budget) -> list[Stretch] | None:
    """The stretches of the least extra work within a budget, or `None` if there are none.

    The last stretch is never recomputed: its gradients are wanted at once.
    """
    at = positions(predictor)
    # By position, and there by the values that are kept already and still alive.
    labels: list[dict[frozenset[int], list[_Label]]] = [{} for _ in at]
    labels[0] = {frozenset(): [_Label(0.0, 0.0)]}
    for first, start in enumerate(at[:-1]):
        fronts = {known: _thinned(ways) for known, ways in labels[first].items()}
        for second in range(first + 1, len(at)):
            stop, last = at[second], second == len(at) - 1
            piece, alive = predictor.piece(start, stop), frozenset(predictor.chain.live(stop))
            trains = predictor.trains(start, stop)
            for recompute in _kinds(second == first + 1, last):
                values, stretch = piece.kept(recompute), (start, stop, recompute and trains)
                most = min(
                    budget.kept_bytes, budget.peak_bytes / ALLOCATOR_SLACK - piece.most(recompute)
                )
                again, inside = (piece.again, 0.0) if recompute else (0.0, piece.inside)
                for known, ways in fronts.items():
                    more = predictor.bytes_of(values - known) + inside
                    found = [
                        _Label(way.work + again, way.kept + more, stretch, way)
                        for way in ways
                        if way.kept + more <= most
                    ]
                    if found:
                        labels[second].setdefault((known | values) & alive, []).extend(found)
        labels[first] = {}
    ends = [way for ways in labels[-1].values() for way in ways]
    best = min(ends, key=lambda way: (way.work, way.kept), default=None)
    return None if best is None else _merged(best)


def lowest(predictor: Predictor) -> list[Stretch]:
    """The stretches of the lowest peak, found by halving the budget."""
    plain = [(0, len(predictor.chain.nodes), False)]
    best, high, low = plain, predictor.predict(plain).peak_bytes, 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = cheapest(predictor, Budget(peak_bytes=middle))
        if found is None:
            low = middle
        else:
            high = middle
            best = min(best, found, key=lambda stretches: predictor.predict(stretches).peak_bytes)
    return best


def uniform(predictor: Predictor, pieces: int) -> list[Stretch]:
    """So many stretches that keep about equally much, all but the last recomputed."""
    at, count = positions(predictor), len(predictor.chain.nodes)
    total = [0.0]
    for begin, end in itertools.pairwise(at):
        piece: Piece = predictor.piece(begin, end)
        total.append(total[-1] + predictor.bytes_of(piece.needs) + piece.inside)
    cuts = {0, count}
    for part in range(1, pieces):
        wanted = total[-1] * part / pieces
        cuts.add(at[min(range(len(at)), key=lambda index: abs(total[index] - wanted))])
    return of_cuts(sorted(cuts))


def of_cuts(cuts: list[int]) -> list[Stretch]:
    """Stretches from each position to the next, all but the last recomputed."""
    return [(start, stop, stop != cuts[-1]) for start, stop in itertools.pairwise(cuts)]


def _alive(predictor: Predictor, position: int) -> float:
    """Bytes of the values that a cut lies across."""
    return predictor.bytes_of(predictor.chain.live(position))


def _spared(predictor: Predictor, position: int) -> float:
    """Work that a cut after a node spares, since no gradient before the cut needs what that node makes."""
    node, cost = predictor.chain.nodes[position - 1], predictor.costs.nodes[position - 1]
    return 0.0 if cost.needs.intersection(node.writes) else cost.again


def _kinds(neighbours: bool, last: bool) -> list[bool]:
    """Whether a piece may be recomputed or not: a longer one that is kept is several that are."""
    return ([False] if neighbours else []) + ([] if last else [True])


def _thinned(ways: list[_Label]) -> list[_Label]:
    """Ways of which none is worse than another in everything, and not too many of them."""
    front: list[_Label] = []
    for way in sorted(ways, key=lambda way: (way.work, way.kept)):
        if not front or way.kept < front[-1].kept:
            front.append(way)
    if len(front) > MOST_LABELS:
        step = (len(front) - 1) / (MOST_LABELS - 1)
        front = [front[round(index * step)] for index in range(MOST_LABELS)]
    return front


def _merged(label: _Label) -> list[Stretch]:
    """The stretches that led to a label, neighbours that are kept as one."""
    stretches: list[Stretch] = []
    current: _Label | None = label
    while current is not None and current.stretch is not None:
        start, stop, recompute = current.stretch
        if stretches and not recompute and not stretches[0][2]:
            stop = stretches.pop(0)[1]
        stretches.insert(0, (start, stop, recompute))
        current = current.before
    return stretches
