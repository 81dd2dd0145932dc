"""Segments: a stretch of a chain run plainly, or as a function whose inside the backward pass makes again from what went in.

The function is pure: weights and state come as values, new state and losses leave as values. The backward pass starts from
the same values, so a Dropout draws the same mask and BatchNormalization's statistics are updated once.

Weights are read once, for the forward pass, and never in the backward pass. A read there, as `tf.recompute_grad` does it, may
come after the weight's update: TensorFlow's dependency optimizer drops the edge from the read to the update where another
path leads there, counts as one a path from one gradient to another through an IdentityN that hands on both, and then takes
that IdentityN apart. What the forward pass reads goes into the loss, and so into the gradient that the update needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import get_keras_mask, set_keras_mask

from kbatch.recompute.barriers import Turns, wait
from kbatch.recompute.chain import Chain, Node
from kbatch.recompute.reusing import reuse


class Context(keras.layers.Layer):
    """A layer that only calls a function, so that inside it Keras knows that this is training, and under which policy."""

    def __init__(self, policy: Any) -> None:
        super().__init__(dtype=policy)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_masking = False
        self.built = True

    def call(self, function: Callable[[], Any], training: bool | None = None) -> Any:
        """What the function returns."""
        return function()


class Scope(keras.StatelessScope):
    """Variables as values: those given, and of any other the one it had when a scope first asked for it.

    Args:
        weights: Pairs (variable, value).
        entry: Values of the other variables by their `id`, shared by the forward pass and those that make it again.
    """

    def __init__(self, weights: Sequence[tuple[Any, tf.Tensor]], entry: dict[int, tf.Tensor]) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        # Given to Keras' own argument, each weight would be cast once by the policy, and gradients summed in float16.
        self.state_mapping = {id(variable): value for variable, value in weights}
        self.entry = entry
        self.updated: dict[int, Any] = {}

    def get_current_value(self, variable: Any) -> tf.Tensor:
        """The value of a variable inside the scope."""
        value = super().get_current_value(variable)
        if value is None:
            key = id(variable)
            if key not in self.entry:
                self.entry[key] = read(variable, self.original_scope)
            value = self.entry[key]
        return value

    def add_update(self, update: tuple[Any, tf.Tensor]) -> None:
        """Note the new value of a variable."""
        self.updated[id(update[0])] = update[0]
        super().add_update(update)


def read(variable: Any, outer: keras.StatelessScope | None) -> tf.Tensor:
    """The value of a variable, not cast, outside of our own scopes."""
    value = outer.get_current_value(variable) if outer is not None else None
    return tf.convert_to_tensor(variable._value if value is None else value)


@dataclass
class _Run:
    """What one run of a segment left: tensors that gradients flow through, and all else."""

    exits: list[tf.Tensor]
    losses: list[tf.Tensor]
    owners: list[Any] = field(default_factory=list)
    others: dict[int, tf.Tensor] = field(default_factory=dict)
    masks: dict[int, tf.Tensor] = field(default_factory=dict)
    updates: list[tuple[Any, tf.Tensor]] = field(default_factory=list)


class Segment:
    """The nodes from one cut of a chain to the next.

    Args:
        chain: The chain.
        start: Integer, position of the first node.
        stop: Integer, position after the last.
    """

    def __init__(self, chain: Chain, start: int, stop: int) -> None:
        self.nodes: tuple[Node, ...] = chain.nodes[start:stop]
        written = {number for node in self.nodes for number in node.writes}
        self.entry = tuple(dict.fromkeys(number for node in self.nodes for number in node.reads if number not in written))
        # What is read here and later still goes through, so that its gradient is summed in the order in which a plain tape
        # would: what later readers sent comes in as one, and those of this segment are added to it one by one.
        self.exit = tuple(number for number in chain.live(stop) if number in written or number in self.entry)
        self.layers = list(dict.fromkeys(node.operation for node in self.nodes if isinstance(node.operation, keras.layers.Layer)))

    def run(self, values: dict[int, Any]) -> None:
        """Run the nodes as Keras does."""
        for node in self.nodes:
            node.run(values)

    def run_recomputed(self, values: dict[int, Any], context: Context, turns: Turns, flowing: Collection[int]) -> None:
        """Run the nodes so that the backward pass makes again whatever is inside.

        Args:
            values: Tensors by number; those that leave the segment are added.
            context: Layer to run under.
            turns: Those of this step.
            flowing: Numbers of the values whose gradients reach something trainable. Others are handed on all the same, for
                whoever asks for the gradient of the input, but nothing waits for them: TensorFlow leaves them out.
        """
        floats = [number for number in self.entry if values[number].dtype.is_floating]
        fixed = {number: values[number] for number in self.entry if number not in floats}
        masks = {number: get_keras_mask(values[number]) for number in self.entry}
        outer = keras.src.backend.common.stateless_scope.get_stateless_scope()
        weights = list({id(v): v for layer in self.layers for v in layer.trainable_variables}.values())
        # Read here: inside of a custom gradient TensorFlow takes a variable that it is told nothing of for a forgotten weight.
        state = {id(v): read(v, outer) for layer in self.layers for v in layer.variables}
        forward: list[_Run] = []
        entered: list[tf.Tensor] = []

        def once(tensors: Sequence[tf.Tensor], others: dict[int, tf.Tensor], weight_values: Sequence[tf.Tensor]) -> _Run:
            inside = {**dict(zip(floats, tensors, strict=True)), **others}
            for number, mask in masks.items():
                if mask is not None and get_keras_mask(inside[number]) is None:
                    set_keras_mask(inside[number], mask)
            return context(lambda: self._run(inside, Scope(list(zip(weights, weight_values, strict=True)), state)), training=True)

        @tf.custom_gradient
        def segment(*arguments: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
            entering, weight_values = arguments[: len(floats)], arguments[len(floats) :]
            entered.extend(map(tf.stop_gradient, arguments))
            forward.append(once(entered[: len(floats)], fixed, entered[len(floats) :]))

            def gradient(*upstream: Any) -> list[Any]:
                dense = [tf.convert_to_tensor(each) for each in upstream]
                leaving = [number in flowing for number in self.exit if number not in forward[0].others]
                reaching = [each for each, flows in itertools.zip_longest(dense, leaving, fillvalue=True) if flows]
                tied = turns.begin([*entering, *fixed.values()], reaching or dense)
                again, others = tied[: len(floats)], dict(zip(fixed, tied[len(floats) :], strict=True))
                sent = [tf.identity(each) for each in dense]
                with tf.GradientTape() as tape:
                    tape.watch([*again, *weight_values])
                    made = once(again, others, weight_values)
                ends = [*made.exits, *made.losses]
                gradients = tape.gradient(ends, [*again, *weight_values], output_gradients=sent)
                instead = {id(new): old for new, old in zip([*again, *weight_values, *tied[len(floats) :]], [*entered, *fixed.values()], strict=True)}
                known = reuse(ends, [*forward[0].exits, *forward[0].losses], instead, map(id, weight_values), sent, turns.hold)
                wanted = [number in flowing for number in floats] + [True] * len(weights)
                reached = list(itertools.compress(gradients, wanted))
                wait(sent, reached, known)
                done = iter(turns.end(reached))
                return [next(done) if one else gradient for one, gradient in zip(wanted, gradients, strict=True)]

            return [*forward[0].exits, *forward[0].losses], gradient

        left = keras.tree.flatten(segment(*(values[number] for number in floats), *(read(weight, outer) for weight in weights)))
        self._leave(values, forward[0], left)

    def _run(self, values: dict[int, Any], scope: Scope) -> _Run:
        with scope:
            for node in self.nodes:
                node.run(values)
        exits = [values[number] for number in self.exit]
        flowing = [tensor for tensor in exits if tensor.dtype.is_floating]
        return _Run(
            flowing,
            list(scope.losses),
            [self._owner(loss) for loss in scope.losses],
            {number: tensor for number, tensor in zip(self.exit, exits, strict=True) if not tensor.dtype.is_floating},
            {number: get_keras_mask(tensor) for number, tensor in zip(self.exit, exits, strict=True)},
            [(variable, tf.stop_gradient(scope.get_current_value(variable))) for variable in scope.updated.values()],
        )

    def _leave(self, values: dict[int, Any], forward: _Run, left: Sequence[tf.Tensor]) -> None:
        flowing = iter(left)
        for number in self.exit:
            values[number] = forward.others[number] if number in forward.others else next(flowing)
            if forward.masks[number] is not None and get_keras_mask(values[number]) is None:
                set_keras_mask(values[number], forward.masks[number])
        for owner, loss in zip(forward.owners, flowing, strict=True):
            owner.add_loss(loss)
        for variable, value in forward.updates:
            variable.assign(value)

    def _owner(self, loss: tf.Tensor) -> Any:
        flat = (inner for layer in self.layers for inner in layer._flatten_layers())
        return next(layer for layer in flat if id(loss) in layer._loss_ids)
