"""Segment: operations that are run again in the backward pass, exact to the bit."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from kbatch.recompute._op_graph import Node, OpGraph
from kbatch.recompute._order import SegmentOrder, share_small_results, wait, weights_first
from kbatch.runtime.keras_private import (
    current_stateless_scope,
    flatten_layers,
    loss_ids,
    mask_of,
    set_mask,
    tensorflow_variable,
)


class Context(keras.layers.Layer):
    """A layer that calls a function, so that Keras applies training mode and a dtype policy to it.

    The private attributes that it sets keep Keras from converting the function, which is no tensor
    (`Layer.__init__`, keras/src/layers/layer.py, Keras 3.15.1).

    Attributes:
        segment: String, the segment that was begun last, for error messages.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__(dtype=policy)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_masking = False
        self.built = True
        self.segment = ""

    def call(self, function: Callable[[], Any], training: bool | None = None) -> Any:
        """Call the function and return its result."""
        return function()


class Scope(keras.StatelessScope):
    """A stateless scope in which every variable keeps the value it had when it was first read.

    Attributes:
        updated: Variables that were assigned inside of the scope, by their `id`.
    """

    def __init__(self, entry: dict[int, tf.Tensor]) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self.entry = entry
        self.updated: dict[int, Any] = {}

    def give(self, weights: Iterable[tuple[Any, tf.Tensor]]) -> None:
        """Set the values of variables.

        They are not passed to `keras.StatelessScope(state_mapping=...)`, which would cast each
        weight once by the policy, so that gradients would be summed in float16.
        """
        self.state_mapping.update((id(variable), value) for variable, value in weights)

    def get_current_value(self, variable: Any) -> tf.Tensor:
        """The value of a variable inside of the scope."""
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
    """The value of a variable outside of our own scopes, in the variable's own type."""
    value = outer.get_current_value(variable) if outer is not None else None
    return tf.convert_to_tensor(tensorflow_variable(variable) if value is None else value)


def forks(node: Node, values: Mapping[int, Any]) -> frozenset[int]:
    """The numbers of the values that a call reads and several of its floating results depend on.

    Gradients come back to such a value from branches inside of the call.
    """
    ends = [values[number] for number in node.writes if values[number].dtype.is_floating]
    if len(ends) < 2 or not all(map(tf.is_symbolic_tensor, ends)):
        return frozenset()
    reads = {id(values[number]): number for number in node.reads}
    found = Counter(number for end in ends for number in _reached(end, reads))
    return frozenset(number for number, times in found.items() if times > 1)


def _reached(end: Any, reads: Mapping[int, int]) -> set[int]:
    """The numbers of the read values that a tensor depends on."""
    stack, seen, reached = [end], set[int](), set[int]()
    while stack:
        tensor = stack.pop()
        if id(tensor) in reads:
            reached.add(reads[id(tensor)])
        elif id(tensor) not in seen:
            seen.add(id(tensor))
            stack += tensor.op.inputs
    return reached


# Copies of weights, by the weight's `id` and the position of the node that reads the copy.
Copies = Mapping[tuple[int, int], tf.Tensor]


@dataclass(frozen=True, eq=False)
class WeightRead:
    """A trained weight that nodes of a segment read from one tensor."""

    variable: Any
    positions: tuple[int, ...]  # the positions of these nodes

    def value(self, copies: Copies, outer: keras.StatelessScope | None) -> tf.Tensor:
        """The tensor: a copy if there is one, else the weight as it is now."""
        copy = copies.get((id(self.variable), self.positions[0]))
        return read(self.variable, outer) if copy is None else copy


def copy_weights(graph: OpGraph) -> Copies:
    """Copy the weights whose gradients must be summed in an order that segments do not keep."""
    copies: dict[tuple[int, int], tf.Tensor] = {}
    for key, (variable, positions) in graph.summed().items():
        value = read(variable, current_stateless_scope())
        for position, copy in zip(positions, _copies(value, len(positions)), strict=True):
            copies[key, position] = copy
    return copies


def weight_reads(graph: OpGraph, start: int, stop: int, copies: Copies) -> list[WeightRead]:
    """The trained weights that the nodes from `start` to `stop` read, as layers are frozen now."""
    reads = []
    for key, (variable, positions) in graph.users().items():
        inside = tuple(position for position in positions if start <= position < stop)
        if inside and (key, inside[0]) in copies:
            reads += [WeightRead(variable, (position,)) for position in inside]
        elif inside:
            reads.append(WeightRead(variable, inside))
    return reads


def _copies(value: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Copies of a tensor, whose gradients are summed from the first copy to the last."""

    @tf.custom_gradient
    def fan(one: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
        return [tf.identity(one) for _ in range(count)], lambda *upstream: _sum(upstream)

    return keras.tree.flatten(fan(value))


def _sum(gradients: Sequence[Any]) -> Any:
    """Sum gradients as a tape does: rows of an embedding are listed one after the other."""
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        values = tf.concat([gradient.values for gradient in gradients], 0)
        indices = tf.concat([gradient.indices for gradient in gradients], 0)
        return tf.IndexedSlices(values, indices, gradients[0].dense_shape)
    return tf.add_n([tf.convert_to_tensor(gradient) for gradient in gradients])


@dataclass(frozen=True)
class Step:
    """What all segments share while one step is traced."""

    context: Context  # layer to run operations under
    turns: SegmentOrder  # order in which segments are recomputed
    # Numbers of the values whose gradients reach something trainable.
    differentiable: Collection[int]
    copies: Copies  # copies of weights that nodes read


@dataclass
class RunResult:
    """The tensors that one run of a segment leaves."""

    # Floating tensors that later segments read, in the order of `Segment.outputs`.
    outputs: list[tf.Tensor]
    losses: list[tf.Tensor]  # losses that layers added
    owners: list[Any] = field(default_factory=list)  # the layer that added each loss
    # Other tensors that later segments read, such as tokens, by their numbers.
    others: dict[int, tf.Tensor] = field(default_factory=dict)
    # Keras' mask of each tensor that later segments read, by its number.
    masks: dict[int, tf.Tensor] = field(default_factory=dict)
    # Variables that layers assigned, with their new values.
    updates: list[tuple[Any, tf.Tensor]] = field(default_factory=list)

    @property
    def ends(self) -> list[tf.Tensor]:
        """The tensors that gradients come back to: outputs and losses."""
        return [*self.outputs, *self.losses]


class Segment:
    """The operations between two cuts of a model.

    Attributes:
        inputs: Numbers of the values that the segment reads from before.
        outputs: Numbers of the values that later operations read. Values that are read here and
            later go through the segment, so that their gradients are summed as a plain tape sums
            them: the sum of later readers first, then this segment's readers one by one.
        layers: The layers among its operations.
        is_differentiable: Boolean, whether a gradient can come back to any output.
        description: String, for error messages.
    """

    def __init__(self, graph: OpGraph, start: int, stop: int) -> None:
        self.nodes: tuple[Node, ...] = graph.nodes[start:stop]
        written = {number for node in self.nodes for number in node.writes}
        read_numbers = [number for node in self.nodes for number in node.reads]
        self.inputs = tuple(
            dict.fromkeys(number for number in read_numbers if number not in written)
        )
        self.outputs = tuple(
            number for number in graph.live(stop) if number in written or number in self.inputs
        )
        operations = [node.operation for node in self.nodes]
        self.layers = list(
            dict.fromkeys(each for each in operations if isinstance(each, keras.layers.Layer))
        )
        self.is_differentiable = any(graph.is_float(number) for number in self.outputs)
        self.description = f"from {self.nodes[0].name!r} to {self.nodes[-1].name!r}"
        self._graph, self._start, self._stop = graph, start, stop

    def run(self, values: dict[int, Any], step: Step) -> None:
        """Run the operations as Keras does, and keep what their gradients need."""
        step.context.segment = self.description
        if not any(self._start <= position < self._stop for _, position in step.copies):
            for node in self.nodes:
                node.run(values)
            return
        state = self.state()
        outer = current_stateless_scope()
        weights = {each: each.value(step.copies, outer) for each in self.weights(step.copies)}
        result = step.context(lambda: self.compute(values, weights, Scope(state)), training=True)
        self.publish(values, result, result.ends)

    def state(self) -> dict[int, tf.Tensor]:
        """The values of all variables of the layers now, by their `id`."""
        outer = current_stateless_scope()
        return {
            id(variable): read(variable, outer)
            for layer in self.layers
            for variable in layer.variables
        }

    def weights(self, copies: Copies) -> list[WeightRead]:
        """The trained weights that the operations read, as layers are frozen now."""
        return weight_reads(self._graph, self._start, self._stop, copies)

    def compute(
        self, values: dict[int, Any], weights: Mapping[WeightRead, tf.Tensor], scope: Scope
    ) -> RunResult:
        """Run the operations as a pure function."""
        with scope:
            for position, node in enumerate(self.nodes, self._start):
                scope.give(
                    (weight.variable, value)
                    for weight, value in weights.items()
                    if position in weight.positions
                )
                node.run(values)
        leaving = {number: values[number] for number in self.outputs}
        others = {
            number: tensor for number, tensor in leaving.items() if not tensor.dtype.is_floating
        }
        return RunResult(
            outputs=[tensor for tensor in leaving.values() if tensor.dtype.is_floating],
            losses=list(scope.losses),
            owners=[self._owner(loss) for loss in scope.losses],
            others=others,
            masks={number: mask_of(tensor) for number, tensor in leaving.items()},
            updates=[
                (variable, tf.stop_gradient(scope.get_current_value(variable)))
                for variable in scope.updated.values()
            ],
        )

    def publish(self, values: dict[int, Any], result: RunResult, ends: Sequence[tf.Tensor]) -> None:
        """Hand the tensors, losses and new state of the forward pass on to the model."""
        remaining = iter(ends)
        for number in self.outputs:
            others = result.others
            values[number] = others[number] if number in others else next(remaining)
            if result.masks[number] is not None and mask_of(values[number]) is None:
                set_mask(values[number], result.masks[number])
        for owner, loss in zip(result.owners, remaining, strict=True):
            owner.add_loss(loss)
        for variable, value in result.updates:
            variable.assign(value)

    def _owner(self, loss: tf.Tensor) -> Any:
        """The layer that added a loss."""
        for layer in self.layers:
            for inner in flatten_layers(layer):
                if id(loss) in loss_ids(inner):
                    return inner
        raise KeyError(id(loss))


# Identities after each output of a segment that adds losses: more than the operations from a value
# to the loss of an activity regularizer. Chosen by hand.
DELAY = 8


def run_recomputed(segment: Segment, values: dict[int, Any], step: Step) -> None:
    """Run a segment so that the backward pass recomputes its inside."""
    _RecomputedSegment(segment, values, step).run(values)


def run_kept(segment: Segment, values: dict[int, Any], step: Step) -> None:
    """Run a segment whose inside is kept until the gradients of all its weights are known.

    Without this, TensorFlow recomputes an earlier segment while activations of this one still wait
    for the gradients of its weights. Eager operations run one after another anyway.
    """
    if tf.executing_eagerly():
        segment.run(values, step)
    else:
        _KeptSegment(segment, values, step).run(values)


class _TracedSegment:
    """One segment in one traced step, with a gradient of its own.

    Its *arguments* are the tensors that gradients are taken for: floating inputs first, weights
    after them. Other inputs, such as tokens, are the same in both passes (`_fixed`).

    Attributes:
        forward: `RunResult` of the forward pass, once it has run.
        ends: The tensors that the model goes on with: outputs and losses.
    """

    forward: RunResult
    ends: Sequence[tf.Tensor]

    def __init__(self, segment: Segment, values: Mapping[int, Any], step: Step) -> None:
        self._segment, self._step = segment, step
        self._floats = [number for number in segment.inputs if values[number].dtype.is_floating]
        self._fixed = {
            number: values[number] for number in segment.inputs if number not in self._floats
        }
        self._masks = {number: mask_of(values[number]) for number in segment.inputs}
        self._weights = segment.weights(step.copies)
        # Read here: TensorFlow takes a variable that is read inside of a custom gradient for a
        # weight that the gradient has forgotten.
        self._state = segment.state()

    def run(self, values: dict[int, Any]) -> None:
        """Run the segment forward, and hand on what it leaves."""
        self._step.context.segment = self._segment.description

        @tf.custom_gradient
        def run(*arguments: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
            return self.run_forward(arguments), self.run_backward

        self.ends = keras.tree.flatten(run(*self.arguments(values)))
        self._segment.publish(values, self.forward, self.ends)

    def run_forward(self, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The forward pass: outputs and losses."""
        raise NotImplementedError

    def run_backward(self, *upstream: Any) -> list[Any]:
        """The backward pass: gradients of the arguments."""
        raise NotImplementedError

    def arguments(self, values: Mapping[int, Any]) -> list[tf.Tensor]:
        """The tensors to call the custom gradient with."""
        outer = current_stateless_scope()
        inputs = [values[number] for number in self._floats]
        return inputs + [weight.value(self._step.copies, outer) for weight in self._weights]

    def _reached(self) -> list[int]:
        """The positions of the floating inputs whose gradients reach something trainable."""
        differentiable = self._step.differentiable
        return [position for position, each in enumerate(self._floats) if each in differentiable]

    def _released(self, gradients: Sequence[Any]) -> list[Any]:
        """The gradients of the arguments, those of inputs once all that are needed are known."""
        positions, count = self._reached(), len(self._floats)
        weights_first(gradients[count:])
        reached = [gradients[position] for position in positions]
        handed_on = self._step.turns.end(reached, gradients[count:])
        released = [*gradients[:count], *handed_on[len(reached) :]]
        for position, gradient in zip(positions, handed_on, strict=False):
            released[position] = gradient
        return released

    def _wanted(self, upstream: Sequence[tf.Tensor]) -> list[bool]:
        """Whether a loss reads each of the ends.

        What only leads to outputs that no loss reads gets no gradient, as in a plain model: with
        zeros an optimizer would still decay it.
        """
        return [not _stands_for_none(*pair) for pair in zip(upstream, self.ends, strict=True)]

    def _compute(
        self,
        inputs: Sequence[tf.Tensor],
        fixed: Mapping[int, tf.Tensor],
        weight_values: Sequence[tf.Tensor],
    ) -> RunResult:
        """Run the segment from the state that it was entered with."""
        values = {**dict(zip(self._floats, inputs, strict=True)), **fixed}
        for number, mask in self._masks.items():
            if mask is not None and mask_of(values[number]) is None:
                set_mask(values[number], mask)
        weights = dict(zip(self._weights, weight_values, strict=True))
        return self._step.context(
            lambda: self._segment.compute(values, weights, Scope(self._state)), training=True
        )


class _KeptSegment(_TracedSegment):
    """A segment whose inside is kept."""

    def run_forward(self, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The forward pass, recorded on a tape of its own."""
        count = len(self._floats)
        self._sources = list(arguments)
        with tf.GradientTape(persistent=True) as self._tape:  # a jacobian asks more than once
            self._tape.watch(self._sources)
            self.forward = self._compute(arguments[:count], self._fixed, arguments[count:])
            self._recorded = _delayed_before_losses(self.forward)
        return self._recorded

    def run_backward(self, *upstream: Any) -> list[Any]:
        """The gradients of the arguments, once all of them are known."""
        self._step.context.segment = self._segment.description
        dense = [tf.convert_to_tensor(gradient) for gradient in upstream]
        wanted = self._wanted(dense)
        targets = itertools.compress(self._recorded, wanted)
        sent = itertools.compress(dense, wanted)
        gradients = self._tape.gradient(list(targets), self._sources, output_gradients=list(sent))
        return self._released(gradients)


class _RecomputedSegment(_TracedSegment):
    """A segment whose inside is recomputed."""

    def __init__(self, segment: Segment, values: Mapping[int, Any], step: Step) -> None:
        super().__init__(segment, values, step)
        self._inputs: Sequence[tf.Tensor] = ()
        self._weight_values: Sequence[tf.Tensor] = ()
        self._entered: list[tf.Tensor] = []

    def run_forward(self, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The forward pass: outputs and losses, with no gradient of their own."""
        count = len(self._floats)
        self._inputs, self._weight_values = arguments[:count], arguments[count:]
        self._entered = [tf.stop_gradient(argument) for argument in arguments]
        self.forward = self._compute(self._entered[:count], self._fixed, self._entered[count:])
        return self.forward.ends

    def run_backward(self, *upstream: Any) -> list[Any]:
        """The backward pass: gradients of the arguments."""
        self._step.context.segment = self._segment.description
        dense = [tf.convert_to_tensor(gradient) for gradient in upstream]
        inputs, fixed = self._enter(dense)
        # The backward pass begins with these identities alone, so that `wait` can hold it back.
        sent = [tf.identity(gradient) for gradient in dense]
        recomputed, gradients = self._recompute(inputs, fixed, sent, dense)
        shared = self._share(recomputed, inputs, fixed, sent)
        return self._release(sent, gradients, shared)

    def _enter(self, upstream: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The inputs to recompute from, held back until it is this segment's turn.

        Floating inputs and other inputs are returned apart. The segment does not wait for gradients
        that reach nothing trainable: TensorFlow leaves those out, unless somebody asks for the
        gradient of the model's input.
        """
        differentiable = self._step.differentiable
        numbers = [number for number in self._segment.outputs if number not in self.forward.others]
        awaited = [
            gradient
            for number, gradient in zip(numbers, upstream, strict=False)
            if number in differentiable
        ]
        awaited += upstream[len(numbers) :]  # the gradients of losses
        tensors = [*self._inputs, *self._fixed.values()]
        held = self._step.turns.begin(tensors, awaited or upstream)
        return held[: len(self._floats)], held[len(self._floats) :]

    def _recompute(
        self,
        inputs: Sequence[tf.Tensor],
        fixed: Sequence[tf.Tensor],
        sent: Sequence[tf.Tensor],
        upstream: Sequence[tf.Tensor],
    ) -> tuple[RunResult, list[Any]]:
        """Recompute the segment, and return it with the gradients of the arguments."""
        sources, wanted = [*inputs, *self._weight_values], self._wanted(upstream)
        with tf.GradientTape() as tape:
            tape.watch(sources)
            others = dict(zip(self._fixed, fixed, strict=True))
            recomputed = self._compute(inputs, others, self._weight_values)
            ends = _delayed_before_losses(recomputed)
        targets, gradients = itertools.compress(ends, wanted), itertools.compress(sent, wanted)
        return recomputed, tape.gradient(list(targets), sources, output_gradients=list(gradients))

    def _share(
        self,
        recomputed: RunResult,
        inputs: Sequence[tf.Tensor],
        fixed: Sequence[tf.Tensor],
        sent: Sequence[tf.Tensor],
    ) -> set[int]:
        """Read small results from the forward pass.

        Returns the `id` of the operations that hand them on.
        """
        new = [*inputs, *self._weight_values, *fixed]
        old = [*self._entered, *self._fixed.values()]
        return share_small_results(
            recomputed.ends,
            self.forward.ends,
            dict(zip(map(id, new), old, strict=True)),
            map(id, self._weight_values),
            sent,
            self._step.turns.hold,
        )

    def _release(
        self, sent: Sequence[tf.Tensor], gradients: Sequence[Any], shared: Collection[int]
    ) -> list[Any]:
        """The gradients of the arguments, taken once the segment is recomputed."""
        reached = [gradients[position] for position in self._reached()]
        wait(sent, [*reached, *gradients[len(self._floats) :]], shared)
        return self._released(gradients)


def _stands_for_none(gradient: tf.Tensor, end: tf.Tensor) -> bool:
    """Whether a tape made the gradient of an output that nothing asks for, as zeros like it."""
    if not tf.is_symbolic_tensor(gradient) or gradient.op.type != "ZerosLike":
        return False
    return gradient.op.inputs[0] is end


def _delayed_before_losses(result: RunResult) -> list[tf.Tensor]:
    """The outputs and losses of a run; the losses' gradients are taken up first."""
    if not result.losses:
        return result.ends
    return [*map(_delayed, result.outputs), *result.losses]


def _delayed(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor whose gradient a tape takes up only after those of losses that layers add.

    A tape goes back one operation of each branch in turn, so the longer branch comes last.
    """
    for _ in range(DELAY):
        tensor = tf.identity(tensor)
    return tensor
