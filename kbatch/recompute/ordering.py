"""Ordering: where a chain may be cut so that every gradient is summed in the order in which a plain tape would.

A tape adds up what the readers of a value send back in the order in which it comes. Of two readers of which one feeds the
other that order is the same with any cut; of two branches it is if no cut lies between the first and where they join.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import keras

from kbatch.errors import RecomputeError
from kbatch.recompute.chain import Chain, Node

# What reads each of its inputs once, and so sends back one gradient. Anything else may send several.
ONCE = frozenset(
    (
        *("Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D", "Conv2DTranspose", "Dense"),
        *("MaxPooling1D", "MaxPooling2D", "AveragePooling1D", "AveragePooling2D", "GlobalAveragePooling1D", "GlobalAveragePooling2D"),
        *("ZeroPadding2D", "Cropping2D", "Add", "Concatenate", "Multiply", "Subtract", "Flatten", "Reshape", "Permute", "Dropout"),
    )
)
SEVERAL = 2
ORDERED = 3  # terms of a sum from which on their order matters


@dataclass(frozen=True)
class Disorder:
    """Positions that must not be cut, since a sum would change its order.

    Attributes:
        first: Integer, the first of them.
        stop: Integer, the position after the last.
        value: Name of the operation whose result is read by several.
    """

    first: int
    stop: int
    value: str


class Ordering:
    """Finds where a chain may be cut.

    Args:
        chain: The chain.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self._writer = {number: position for position, node in enumerate(chain.nodes) for number in node.writes}
        self._readers: dict[int, list[int]] = {}
        for position, node in enumerate(chain.nodes):
            for number in node.reads:
                self._readers.setdefault(number, []).append(position)

    @cached_property
    def disorders(self) -> list[Disorder]:
        """All of them."""
        return [disorder for number in self._readers if self.chain.is_float(number) for disorder in self._of_value(number)]

    @cached_property
    def positions(self) -> list[int]:
        """Where the chain may be cut, its begin and end among them."""
        forbidden = {position for one in self.disorders for position in range(one.first, one.stop)}
        return [position for position in range(len(self.chain.nodes) + 1) if position not in forbidden]

    def check(self, cuts: Iterable[int]) -> None:
        """Refuse cuts that change the order of a sum.

        Args:
            cuts: Positions.

        Raises:
            RecomputeError: With the layer to cut after instead.
        """
        nodes = self.chain.nodes
        for cut in cuts:
            for one in self.disorders:
                if one.first <= cut < one.stop:
                    instead = next(position for position in self.positions if position >= one.stop)
                    raise RecomputeError(
                        "A cut must not lie between branches that read the same value, or its gradient would be summed in another order",
                        f"one after {nodes[cut - 1].name!r}, where branches from {one.value!r} have not joined",
                        "Do not cut after them" if instead == len(nodes) else f"Cut after {nodes[instead - 1].name!r}",
                    )

    def _of_value(self, number: int) -> list[Disorder]:
        nodes, readers = self.chain.nodes, self._readers[number]
        if sum(_terms(nodes[reader], number) for reader in readers) < ORDERED:
            return []
        name = nodes[self._writer[number]].name if number in self._writer else "an input"
        pairs = itertools.combinations_with_replacement(readers, 2)
        return [Disorder(one + 1, self._join(one, other), name) for one, other in pairs if self._are_branches(one, other)]

    def _are_branches(self, one: int, other: int) -> bool:
        """Whether neither of two operations feeds the other; one with several results branches by itself."""
        return len(self.chain.nodes[one].writes) > 1 if one == other else not self._fed[one] >> other & 1

    @cached_property
    def _fed(self) -> list[int]:
        """For each operation the ones that it feeds, and itself, as the bits of an integer."""
        fed = [1 << position for position in range(len(self.chain.nodes))]
        for position in reversed(range(len(fed))):
            for number in self.chain.nodes[position].writes:
                for reader in self._readers.get(number, ()):
                    fed[position] |= fed[reader]
        return fed

    def _join(self, one: int, other: int) -> int:
        """The first position after two operations where at most one value is alive that comes from either."""
        either = self._fed[one] | self._fed[other]
        for position in range(other + 1, len(self.chain.nodes)):
            writers = (self._writer[number] for number in self.chain.live(position) if number in self._writer)
            if sum(either >> writer & 1 for writer in writers) <= 1:
                return position
        return len(self.chain.nodes)


def _terms(node: Node, number: int) -> int:
    """How many gradients an operation sends back to a value that it reads."""
    arguments = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
    times = sum(node.symbols.get(id(argument)) == number for argument in arguments)
    kind = type(node.operation)
    return times * (1 if kind.__name__ in ONCE and kind.__module__.startswith("keras.") else SEVERAL)
