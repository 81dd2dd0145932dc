"""Placing: the cuts of the least extra work under a budget of bytes, by dynamic programming over the positions of a chain. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from kbatch.recompute.predicting import Piece, Predictor, Stretch

MOST_POSITIONS, MOST_LABELS = 64, 24
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


@dataclass(frozen=True)
class _Label:
    """One way to cut the chain up to a position."""

    work: float
    kept: float
    known: frozenset[int]  # values that are kept already and alive at the position
    stretch: Stretch | None = None
    before: _Label | None = None


def positions(predictor: Predictor) -> list[int]:
    """Where it may be worth cutting: of each few neighbours the one where the fewest bytes are alive."""
    begin, *inner, end = predictor.cuts
    width = max(1, -(-len(inner) // MOST_POSITIONS))
    windows = (inner[first : first + width] for first in range(0, len(inner), width))
    return [begin, *(min(window, key=lambda position: (_alive(predictor, position), -_spared(predictor, position))) for window in windows), end]


def cheapest(predictor: Predictor, budget: Budget) -> list[Stretch] | None:
    """The stretches of the least extra work within a budget, or `None` if there are none.

    The last stretch is never recomputed: its gradients are wanted at once.
    """
    at = positions(predictor)
    later = _gradients_after(predictor, at)
    labels: list[list[_Label]] = [[] for _ in at]
    labels[0] = [_Label(0.0, 0.0, frozenset())]
    for first, start in enumerate(at[:-1]):
        for second in range(first + 1, len(at)):
            stop, last = at[second], second == len(at) - 1
            piece = predictor.piece(start, stop)
            everything = predictor.bytes_of(piece.needs) + piece.inside
            alive = frozenset(predictor.chain.live(stop))
            for recompute in _kinds(second == first + 1, last):
                values = piece.kept(recompute)
                again = everything - predictor.bytes_of(piece.entry & piece.needs) if recompute else 0.0
                beside = again + piece.outgoing + piece.transient + later[first]
                for label in labels[first]:
                    kept = label.kept + predictor.bytes_of(values - label.known) + (0.0 if recompute else piece.inside)
                    if kept + beside <= budget.peak_bytes and kept <= budget.kept_bytes:
                        work = label.work + (piece.again if recompute else 0.0)
                        labels[second].append(_Label(work, kept, (label.known | values) & alive, (start, stop, recompute), label))
        labels[first + 1] = _thinned(labels[first + 1])
    best = min(_thinned(labels[-1]), key=lambda label: (label.work, label.kept), default=None)
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
    return 0.0 if cost.needs.intersection(node.writes) else cost.forward


def _gradients_after(predictor: Predictor, at: list[int]) -> list[float]:
    """Bytes of the gradients of all weights from each position on."""
    return [sum(cost.gradients for cost in predictor.costs.nodes[position:]) for position in at]


def _kinds(neighbours: bool, last: bool) -> list[bool]:
    """Whether a piece may be recomputed or not: a longer one that is kept is several that are."""
    return ([False] if neighbours else []) + ([] if last else [True])


def _thinned(labels: list[_Label]) -> list[_Label]:
    """Labels of which none is worse than another in everything, and not too many of them."""
    found: list[_Label] = []
    for known in {label.known for label in labels}:
        least = float("inf")
        front = []
        for label in sorted((label for label in labels if label.known == known), key=lambda label: (label.work, label.kept)):
            if label.kept < least:
                least = label.kept
                front.append(label)
        if len(front) > MOST_LABELS:
            step = (len(front) - 1) / (MOST_LABELS - 1)
            front = [front[round(index * step)] for index in range(MOST_LABELS)]
        found += front
    return found


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
