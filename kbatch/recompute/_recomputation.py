"""Recomputation of a segment: its inside is not kept, and the backward pass computes it once more.

Weights are read once, in the forward pass, and handed to the backward pass as values. Reading them
there, as `tf.recompute_grad` does, is a race: the read may return the updated weight. Grappler's
dependency optimizer may drop the edge "read before update", because it sees another path, through
an IdentityN that it splits afterwards. A value read in the forward pass is safe: the update waits
for the gradient, the gradient for the loss, the loss for the read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from kbatch.recompute._barriers import wait
from kbatch.recompute._reuse import share_small_results
from kbatch.recompute._scope import Scope
from kbatch.recompute._segment import RunResult, Segment, Step
from kbatch.runtime.keras_private import current_stateless_scope, mask_of, set_mask

# Identities after each output of a segment that adds losses: more than the operations from a value
# to the loss of an activity regularizer. Chosen by hand.
DELAY = 8


def run_recomputed(segment: Segment, values: dict[int, Any], step: Step) -> None:
    """Run a segment so that the backward pass recomputes its inside.

    Args:
        segment: The segment.
        values: Tensors by their numbers. Those that leave the segment are added.
        step: What the segments of this step share.
    """
    step.context.segment = segment.description
    recomputation = _Recomputation(segment, values, step)

    @tf.custom_gradient
    def run(*arguments: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
        return recomputation.run_forward(arguments), recomputation.run_backward

    recomputation.ends = keras.tree.flatten(run(*recomputation.arguments(values)))
    segment.publish(values, recomputation.forward, recomputation.ends)


class _Recomputation:
    """One segment in one traced step.

    Its *arguments* are the tensors that gradients are taken for: floating inputs first, weights
    after them. Other inputs, such as tokens, are the same in both passes (`_fixed`).

    Args:
        segment: The segment.
        values: Tensors by their numbers.
        step: What the segments of this step share.

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
        self._inputs: Sequence[tf.Tensor] = ()
        self._weight_values: Sequence[tf.Tensor] = ()
        self._entered: list[tf.Tensor] = []

    def arguments(self, values: Mapping[int, Any]) -> list[tf.Tensor]:
        """The tensors to call the custom gradient with."""
        outer = current_stateless_scope()
        inputs = [values[number] for number in self._floats]
        return inputs + [weight.value(self._step.copies, outer) for weight in self._weights]

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
        """Recompute the segment, and return it with the gradients of the arguments.

        What only leads to outputs that no loss reads gets none, as in a plain model: with zeros an
        optimizer would still decay it.
        """
        sources = [*inputs, *self._weight_values]
        wanted = [not _stands_for_none(*pair) for pair in zip(upstream, self.ends, strict=True)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            others = dict(zip(self._fixed, fixed, strict=True))
            recomputed = self._compute(inputs, others, self._weight_values)
            outputs = recomputed.outputs
            if recomputed.losses:
                outputs = [_delayed(output) for output in outputs]
            ends = [*outputs, *recomputed.losses]
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
        """The gradients of the arguments, those that reach something trainable all at once."""
        differentiable = self._step.differentiable
        positions = [
            position for position, number in enumerate(self._floats) if number in differentiable
        ]
        positions += range(len(self._floats), len(gradients))  # the weights
        reached = [gradients[position] for position in positions]
        wait(sent, reached, shared)
        released = list(gradients)
        for position, gradient in zip(positions, self._step.turns.end(reached), strict=True):
            released[position] = gradient
        return released

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


def _stands_for_none(gradient: tf.Tensor, end: tf.Tensor) -> bool:
    """Whether a tape made the gradient of an output that nothing asks for, as zeros like it."""
    if not tf.is_symbolic_tensor(gradient) or gradient.op.type != "ZerosLike":
        return False
    return gradient.op.inputs[0] is end


def _delayed(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor whose gradient a tape takes up only after those of losses that layers add.

    A tape goes back one operation of each branch in turn, so the longer branch comes last.
    """
    for _ in range(DELAY):
        tensor = tf.identity(tensor)
    return tensor
