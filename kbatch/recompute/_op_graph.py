"""Op graph: a model as its operations in call order. It can be cut between any two of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import keras

from kbatch.recompute._nested_models import Unfolded, functional_of

# Two terms give the same sum in either order; three or more may not.
ORDERED = 3


class OpGraph:
    """The operations of a Functional or Sequential model in call order, nested models unfolded.

    Values, that is tensors between operations, are known by numbers; operations by positions.

    Args:
        model: The model. Its layers are shared, not copied.

    Attributes:
        functional: The Functional model behind it.
        inputs: Tuple of integers, numbers of the model's inputs.
        nodes: Tuple of `Node` in call order.
        outputs: Tuple of integers, numbers of the model's outputs.

    Raises:
        RecomputeError: If the model hides its graph.
    """

    def __init__(self, model: keras.Model) -> None:
        self.functional = functional_of(model)
        unfolded = Unfolded(self.functional)
        self.inputs, self.nodes = unfolded.inputs, unfolded.nodes
        self.outputs = unfolded.outputs
        self._floats = unfolded.floats

    def is_float(self, number: int) -> bool:
        """Whether a value is floating, so that gradients can flow through it."""
        return number in self._floats

    def live(self, position: int) -> tuple[int, ...]:
        """Numbers of the values that exist before a position and are read at it or later."""
        return self._live[position]

    @cached_property
    def _live(self) -> list[tuple[int, ...]]:
        needed = set(self.outputs)
        live = [tuple(sorted(needed))]
        for node in reversed(self.nodes):
            needed = (needed - set(node.writes)) | set(node.reads)
            live.append(tuple(sorted(needed)))
        return live[::-1]

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Positions of the nodes that read a value, by its number."""
        readers: dict[int, list[int]] = {}
        for position, node in enumerate(self.nodes):
            for number in node.reads:
                readers.setdefault(number, []).append(position)
        return readers

    @cached_property
    def fed(self) -> list[int]:
        """For each node the set of nodes that it feeds, and itself, as the bits of an integer."""
        fed = [1 << position for position in range(len(self.nodes))]
        for position in reversed(range(len(fed))):
            for number in self.nodes[position].writes:
                for reader in self.readers.get(number, ()):
                    fed[position] |= fed[reader]
        return fed

    def feed_in_turn(self, positions: Sequence[int]) -> bool:
        """Whether each of these nodes feeds the next."""
        return all(self.fed[one] >> other & 1 for one, other in itertools.pairwise(positions))

    def users(self) -> dict[int, tuple[Any, list[int]]]:
        """The trained weights and the positions of the nodes that use them, by the weight's `id`.

        Weights that are frozen now are left out.
        """
        users: dict[int, tuple[Any, list[int]]] = {}
        for position, node in enumerate(self.nodes):
            for variable in node.weights:
                users.setdefault(id(variable), (variable, []))[1].append(position)
        return users

    def summed(self) -> dict[int, tuple[Any, list[int]]]:
        """The weights that three nodes or more use, where the order of summation is certain.

        Each comes with the positions of its nodes in the order in which a plain tape sums their
        gradients, by the weight's `id`. Where each node feeds the next, the last comes first. The
        steps of a TimeDistributed model are summed from the first to the last. Elsewhere the order
        depends on the lengths of branches.
        """
        summed = {}
        for key, (variable, positions) in self.users().items():
            if len(positions) < ORDERED or getattr(variable, "regularizer", None) is not None:
                continue
            if self.feed_in_turn(positions):
                summed[key] = variable, positions[::-1]
            elif self._are_time_steps(positions):
                summed[key] = variable, positions
        return summed

    def _are_time_steps(self, positions: Sequence[int]) -> bool:
        """Whether nodes are different steps of time of one TimeDistributed layer."""
        time_steps = [self.nodes[position].time_step for position in positions]
        layers = {time_step[0] for time_step in time_steps if time_step}
        is_distinct = len(set(time_steps)) == len(time_steps)
        return None not in time_steps and len(layers) == 1 and is_distinct

    def differentiable(self) -> frozenset[int]:
        """Numbers of the values that a gradient comes to, as layers are frozen now.

        These are the floating values that something trainable lies before.
        """
        differentiable: set[int] = set()
        for node in self.nodes:
            if node.weights or not differentiable.isdisjoint(node.reads):
                differentiable.update(number for number in node.writes if self.is_float(number))
        return frozenset(differentiable)
