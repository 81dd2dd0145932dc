"""Segment: consecutive operations run plainly, or as a function whose inside the backward pass recomputes.

The function is pure: weights and state come as values, new state and losses leave as values. The
backward pass starts from the same values, so a Dropout draws the same mask and BatchNormalization's
statistics are updated once.

Weights are read once, for the forward pass, and never in the backward pass. A read there, as
`tf.recompute_grad` does it, may come after the weight's update: TensorFlow's dependency optimizer
drops the edge from the read to the update where another path leads there, counts as one a path from
one gradient to another through an IdentityN that hands on both, and then takes that IdentityN
apart. What the forward pass reads goes into the loss, and so into the gradient that the update
needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import get_keras_mask, set_keras_mask

from kbatch.recompute._barriers import Turns, wait
from kbatch.recompute._op_graph import Chain, Node
from kbatch.recompute._reuse import reuse

LATER = 8  # more operations than there are from a value to the loss of an activity regularizer

# The tensors that nodes read a weight from where its gradients are summed in an order of our own:
# by the weight's `id` and the node's position.
Copies = Mapping[tuple[int, int], tf.Tensor]


class Context(keras.layers.Layer):
    """A layer that only calls a function, so that inside it Keras knows that this is training, and under which policy."""

    def __init__(self, policy: Any) -> None:
        super().__init__(dtype=policy)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_masking = False
        self.built = True
        self.where = ""  # the segment that was begun last, in words

    def call(self, function: Callable[[], Any], training: bool | None = None) -> Any:
        """What the function returns."""
        return function()


class Scope(keras.StatelessScope):
    """Variables as values: those given, and of any other the one it had when a scope first asked for it.

    Args:
        entry: Values of variables by their `id`, shared by the forward pass and those that make it
            again.
    """

    def __init__(self, entry: dict[int, tf.Tensor]) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self.entry = entry
        self.updated: dict[int, Any] = {}

    def give(self, weights: Iterable[tuple[Any, tf.Tensor]]) -> None:
        """Let variables have these values from now on."""
        # Given to Keras' own argument, each weight would be cast once by the policy, and gradients
        # summed in float16.
        self.state_mapping.update((id(variable), value) for variable, value in weights)

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


def stateless_scope() -> keras.StatelessScope | None:
    """The scope that the user's own code runs in, if there is one."""
    return keras.src.backend.common.stateless_scope.get_stateless_scope()


def copies_of(chain: Chain) -> dict[tuple[int, int], tf.Tensor]:
    """A tensor for each node that reads a weight whose gradients must be summed in an order that the segments do not keep."""
    found: dict[tuple[int, int], tf.Tensor] = {}
    for key, (variable, order) in chain.summed().items():
        found.update(
            zip(
                ((key, position) for position in order),
                _fanned(read(variable, stateless_scope()), len(order)),
                strict=True,
            )
        )
    return found


def _fanned(value: tf.Tensor, count: int) -> list[tf.Tensor]:
    """So many tensors equal to one, to which their gradients come back summed from the first to the last."""

    @tf.custom_gradient
    def fan(one: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
        return [tf.identity(one) for _ in range(count)], lambda *upstream: _summed(upstream)

    return keras.tree.flatten(fan(value))


def _summed(gradients: Sequence[Any]) -> Any:
    """Their sum as a tape makes it: rows that were looked up are listed one after the other."""
    if all(isinstance(each, tf.IndexedSlices) for each in gradients):
        values, indices = (
            tf.concat([getattr(each, name) for each in gradients], 0)
            for name in ("values", "indices")
        )
        return tf.IndexedSlices(values, indices, gradients[0].dense_shape)
    return tf.add_n([tf.convert_to_tensor(each) for each in gradients])


def _later(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor whose gradient a tape, which goes back one operation of each branch in turn, takes up only after those of losses of layers."""
    for _ in range(LATER):
        tensor = tf.identity(tensor)
    return tensor


def read(variable: Any, outer: keras.StatelessScope | None) -> tf.Tensor:
    """The value of a variable, not cast, outside of our own scopes."""
    value = outer.get_current_value(variable) if outer is not None else None
    return tf.convert_to_tensor(variable._value if value is None else value)


@dataclass(frozen=True, eq=False)
class Use:
    """A weight and the positions of nodes of a segment that read it from one tensor, so that their gradients are summed inside."""

    variable: Any
    positions: tuple[int, ...]

    def value(self, copies: Copies, outer: keras.StatelessScope | None) -> tf.Tensor:
        """That tensor."""
        copy = copies.get((id(self.variable), self.positions[0]))
        return read(self.variable, outer) if copy is None else copy


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
        self.entry = tuple(
            dict.fromkeys(
                number for node in self.nodes for number in node.reads if number not in written
            )
        )
        # What is read here and later still goes through, so that its gradient is summed in the
        # order in which a plain tape
        # would: what later readers sent comes in as one, and those of this segment are added to it
        # one by one.
        self.exit = tuple(
            number for number in chain.live(stop) if number in written or number in self.entry
        )
        self.layers = list(
            dict.fromkeys(
                node.operation
                for node in self.nodes
                if isinstance(node.operation, keras.layers.Layer)
            )
        )
        self.leads_on = any(map(chain.is_float, self.exit))
        self.words = f"from {self.nodes[0].name!r} to {self.nodes[-1].name!r}"
        self._chain, self._start, self._stop = chain, start, stop

    def _uses(self, copies: Copies) -> list[Use]:
        """The weights that are trained, as layers are frozen now."""
        found = []
        for key, (variable, positions) in self._chain.users().items():
            inside = tuple(
                position for position in positions if self._start <= position < self._stop
            )
            if inside and (key, inside[0]) in copies:
                found += [Use(variable, (position,)) for position in inside]
            elif inside:
                found.append(Use(variable, inside))
        return found

    def run(self, values: dict[int, Any], context: Context, copies: Copies) -> None:
        """Run the nodes as Keras does.

        Args:
            values: Tensors by number; those that the nodes make are added.
            context: Layer to run under.
            copies: What nodes read a weight from.
        """
        context.where = self.words
        if not any(self._start <= position < self._stop for _, position in copies):
            for node in self.nodes:
                node.run(values)
            return
        outer = stateless_scope()
        state = {id(v): read(v, outer) for layer in self.layers for v in layer.variables}
        weights = {use: use.value(copies, outer) for use in self._uses(copies)}
        done = context(lambda: self._run(values, weights, Scope(state)), training=True)
        self._leave(values, done, [*done.exits, *done.losses])

    def run_recomputed(
        self,
        values: dict[int, Any],
        context: Context,
        turns: Turns,
        flowing: Collection[int],
        copies: Copies,
    ) -> None:
        """Run the nodes so that the backward pass makes again whatever is inside.

        Args:
            values: Tensors by number; those that leave the segment are added.
            context: Layer to run under.
            turns: Those of this step.
            flowing: Numbers of the values whose gradients reach something trainable. Others are
                handed on all the same, for whoever asks for the gradient of the input, but nothing
                waits for them: TensorFlow leaves them out.
            copies: What nodes read a weight from.
        """
        context.where = self.words
        floats = [number for number in self.entry if values[number].dtype.is_floating]
        fixed = {number: values[number] for number in self.entry if number not in floats}
        masks = {number: get_keras_mask(values[number]) for number in self.entry}
        outer, uses = stateless_scope(), self._uses(copies)
        # Read here: inside of a custom gradient TensorFlow takes a variable that it is told nothing
        # of for a forgotten weight.
        state = {id(v): read(v, outer) for layer in self.layers for v in layer.variables}
        forward: list[_Run] = []
        entered: list[tf.Tensor] = []

        def once(
            tensors: Sequence[tf.Tensor],
            others: dict[int, tf.Tensor],
            weight_values: Sequence[tf.Tensor],
        ) -> _Run:
            inside = {**dict(zip(floats, tensors, strict=True)), **others}
            for number, mask in masks.items():
                if mask is not None and get_keras_mask(inside[number]) is None:
                    set_keras_mask(inside[number], mask)
            return context(
                lambda: self._run(
                    inside, dict(zip(uses, weight_values, strict=True)), Scope(state)
                ),
                training=True,
            )

        @tf.custom_gradient
        def segment(*arguments: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
            entering, weight_values = arguments[: len(floats)], arguments[len(floats) :]
            entered.extend(map(tf.stop_gradient, arguments))
            forward.append(once(entered[: len(floats)], fixed, entered[len(floats) :]))

            def gradient(*upstream: Any) -> list[Any]:
                context.where = self.words
                dense = [tf.convert_to_tensor(each) for each in upstream]
                leaving = [
                    number in flowing for number in self.exit if number not in forward[0].others
                ]
                reaching = [
                    each
                    for each, flows in itertools.zip_longest(dense, leaving, fillvalue=True)
                    if flows
                ]
                tied = turns.begin([*entering, *fixed.values()], reaching or dense)
                again, others = (
                    tied[: len(floats)],
                    dict(zip(fixed, tied[len(floats) :], strict=True)),
                )
                sent = [tf.identity(each) for each in dense]
                with tf.GradientTape() as tape:
                    tape.watch([*again, *weight_values])
                    made = once(again, others, weight_values)
                    ends = [*(map(_later, made.exits) if made.losses else made.exits), *made.losses]
                gradients = tape.gradient(ends, [*again, *weight_values], output_gradients=sent)
                instead = {
                    id(new): old
                    for new, old in zip(
                        [*again, *weight_values, *tied[len(floats) :]],
                        [*entered, *fixed.values()],
                        strict=True,
                    )
                }
                known = reuse(
                    [*made.exits, *made.losses],
                    [*forward[0].exits, *forward[0].losses],
                    instead,
                    map(id, weight_values),
                    sent,
                    turns.hold,
                )
                wanted = [number in flowing for number in floats] + [True] * len(uses)
                reached = list(itertools.compress(gradients, wanted))
                wait(sent, reached, known)
                done = iter(turns.end(reached))
                return [
                    next(done) if one else gradient
                    for one, gradient in zip(wanted, gradients, strict=True)
                ]

            return [*forward[0].exits, *forward[0].losses], gradient

        left = keras.tree.flatten(
            segment(
                *(values[number] for number in floats), *(use.value(copies, outer) for use in uses)
            )
        )
        self._leave(values, forward[0], left)

    def _run(self, values: dict[int, Any], weights: Mapping[Use, tf.Tensor], scope: Scope) -> _Run:
        with scope:
            for position, node in enumerate(self.nodes, self._start):
                scope.give(
                    (use.variable, value)
                    for use, value in weights.items()
                    if position in use.positions
                )
                node.run(values)
        exits = [values[number] for number in self.exit]
        flowing = [tensor for tensor in exits if tensor.dtype.is_floating]
        return _Run(
            flowing,
            list(scope.losses),
            [self._owner(loss) for loss in scope.losses],
            {
                number: tensor
                for number, tensor in zip(self.exit, exits, strict=True)
                if not tensor.dtype.is_floating
            },
            {
                number: get_keras_mask(tensor)
                for number, tensor in zip(self.exit, exits, strict=True)
            },
            [
                (variable, tf.stop_gradient(scope.get_current_value(variable)))
                for variable in scope.updated.values()
            ],
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
