"""Exact accumulation: the loss is taken once, of the outputs of all passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kbatch.models.accumulation import dense, make_variables, split, state_of_layers, sum_type
from kbatch.recipe import Recipe
from kbatch.recompute._segment import Context, Scope
from kbatch.runtime import keras_private
from kbatch.runtime.keras_private import replaced_method

Tensors = list[tf.Tensor]


@contextmanager
def called_in_passes(model: keras.Model, recipe: Recipe) -> Iterator[None]:
    """Let the training call of a model go through a batch in the passes of a recipe.

    One train step of Keras then takes a whole batch. It is Keras' own, or the user's, and sees the
    outputs of the whole batch; metrics, loss scaling and moving statistics are as in Keras. Dropout
    draws the same units in both forward passes. Methods are wrapped on the instance. Nothing is
    done for a recipe that averages the gradients of passes, or takes one pass.
    """
    if not recipe.is_exact:
        yield
        return
    keras_private.create_global_seed_generator()
    call = _PassedCall(model, recipe.accumulation_steps)
    own_step = model.train_step

    def train_step(batch: Any) -> Any:
        make_variables(model, batch)
        with call.training():
            return own_step(batch)

    model.train_function = None
    try:
        with replaced_method(model, "call", call), replaced_method(model, "train_step", train_step):
            yield
    finally:
        model.train_function = None


class _PassedCall:
    """Stands for a model's `call`: inside of a train step it goes through the batch in passes."""

    def __init__(self, model: keras.Model, passes: int) -> None:
        self._model, self._passes, self._call = model, passes, model.call
        self._context = Context(model.dtype_policy)
        self._in_step = False

    @contextmanager
    def training(self) -> Iterator[None]:
        """Go through batches in passes inside the `with` block."""
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False

    def __call__(self, inputs: Any, *others: Any, **context: Any) -> Any:
        """Return what the model's own `call` returns."""
        if not self._in_step or context.get("training") is False:
            return self._call(inputs, *others, **context)
        mask = context.pop("mask", None)
        batch = keras.tree.flatten((inputs, mask))
        given = [position for position, part in enumerate(batch) if part is not None]
        parts = [split(batch[position], self._passes) for position in given]
        masks = [keras_private.mask_of(batch[position]) for position in given]
        masked = [place for place, each in enumerate(masks) if each is not None]
        parts += [split(masks[place], self._passes) for place in masked]
        has_mask = mask is not None

        def call(part: Tensors) -> Any:
            whole = list(batch)
            for position, tensor in zip(given, part, strict=False):
                whole[position] = tensor
            for place, each in zip(masked, part[len(given) :], strict=True):
                keras_private.set_mask(whole[given[place]], each)
            x, own_mask = keras.tree.pack_sequence_as((inputs, mask), whole)
            more = {**context, "mask": own_mask} if has_mask else context
            return self._context(lambda: self._call(x, *others, **more), training=True)

        return _Passage(self._model, self._passes, call).through(parts)


@dataclass
class _Ends:
    """What a pass leaves: floating tensors, the sum of added losses, other tensors, and state."""

    floats: Tensors
    added: tf.Tensor
    others: Tensors
    state: Tensors


class _Outputs:
    """The outputs of one pass: tensors in one flat list, and how to make outputs of such a list.

    Besides the outputs themselves the list holds what Keras attaches to them: masks, and the logits
    from which a loss computes instead of the output of an activation.

    Attributes:
        tensors: List of the tensors.
        is_float: List of booleans, which of them have a gradient.
    """

    def __init__(self, outputs: Any) -> None:
        flat = keras.tree.flatten(outputs)
        self._structure = keras.tree.map_structure(lambda _: 0, outputs)
        self._count = len(flat)
        self.tensors, self._attached = list(flat), list[tuple[int, Any]]()
        for set_, get in _ATTACHED:
            for place, output in enumerate(flat):
                if get(output) is not None:
                    self.tensors.append(get(output))
                    self._attached.append((place, set_))
        self.is_float = [tensor.dtype.is_floating for tensor in self.tensors]

    def parted(self) -> tuple[Tensors, Tensors]:
        """Return the floating tensors, and the others."""
        pairs = list(zip(self.tensors, self.is_float, strict=True))
        floats = [tensor for tensor, is_float in pairs if is_float]
        return floats, [tensor for tensor, is_float in pairs if not is_float]

    def made_of(self, floats: Sequence[Any], others: Sequence[Any]) -> Any:
        """Return outputs of the same form with these tensors."""
        left, right = iter(floats), iter(others)
        tensors = [next(left) if each else next(right) for each in self.is_float]
        flat, rest = tensors[: self._count], tensors[self._count :]
        for (place, set_), tensor in zip(self._attached, rest, strict=True):
            set_(flat[place], tensor)
        return keras.tree.pack_sequence_as(self._structure, flat)


_ATTACHED = (
    (keras_private.set_mask, keras_private.mask_of),
    (keras_private.set_logits, keras_private.logits_of),
)


@dataclass
class _Form:
    """The form of what a pass returns: its outputs, the types of their tensors, added losses."""

    outputs: _Outputs
    floats: list[tf.TensorSpec]
    others: list[tf.TensorSpec]
    adds_losses: bool


class _Passage:
    """One passage of a batch through a model, forward and backward, in parts.

    Weights and state enter each part as values, and new state leaves it as values: the second
    forward pass of a part begins where the first one began.
    """

    def __init__(self, model: keras.Model, passes: int, call: Callable[[Tensors], Any]) -> None:
        self._model, self._passes, self._call = model, passes, call
        self._weights = list(model.trainable_variables)
        self._state = [variable for variable, _ in state_of_layers(model)]
        self._state += keras_private.global_seed_variables()
        self._frozen: dict[int, tf.Tensor] = {}

    def through(self, parts: Tensors) -> Any:
        """Return the outputs of all parts as one batch; gradients go back part by part."""
        weights = [_value(variable) for variable in self._weights]
        state = [_value(variable) for variable in self._state]
        # Read here: a variable that is read inside of a custom gradient counts as forgotten there.
        known = {id(variable) for variable in (*self._weights, *self._state)}
        self._frozen = {
            id(each): _value(each) for each in self._model.variables if id(each) not in known
        }
        form = self._form(parts, weights, state)
        left: list[_Ends] = []

        @tf.custom_gradient
        def run(*values: tf.Tensor) -> tuple[Tensors, Callable[..., Any]]:
            fixed = [tf.stop_gradient(value) for value in values]
            ends = self._forward(form, parts, fixed, state)
            left.append(ends)

            def backward(*upstream: Any) -> list[Any]:
                return self._backward(parts, list(values), state, list(upstream))

            return [*ends.floats, ends.added], backward

        *floats, added = run(*weights)
        for variable, value in zip(self._state, left[0].state, strict=True):
            variable.assign(value)
        if form.adds_losses:
            self._model.add_loss(added)
        return form.outputs.made_of(floats, left[0].others)

    def _form(self, parts: Tensors, weights: Tensors, state: Tensors) -> _Form:
        """Trace one part, without running it, to know what the model returns."""
        found: list[_Form] = []

        def trace(part: Tensors, weights: Tensors, state: Tensors) -> tf.Tensor:
            outputs, added, _ = self._run(part, weights, state)
            floats, others = map(_specs, outputs.parted())
            found.append(_Form(outputs, floats, others, bool(added)))
            return tf.constant(0)

        tf.function(trace, autograph=False).get_concrete_function(
            [tf.TensorSpec(part.shape[1:], part.dtype) for part in parts],
            _specs(weights),
            _specs(state),
        )
        return found[-1]

    def _run(
        self, part: Tensors, weights: Tensors, state: Tensors
    ) -> tuple[_Outputs, Tensors, Tensors]:
        """Run one part as a pure function; return outputs, added losses and the new state."""
        entry = {id(each): value for each, value in zip(self._state, state, strict=True)}
        scope = Scope({**self._frozen, **entry})
        with scope:
            scope.give(zip(self._weights, weights, strict=True))
            outputs = _Outputs(self._call(part))
            new = [scope.get_current_value(variable) for variable in self._state]
        return outputs, [tf.reduce_sum(loss) for loss in scope.losses], new

    def _ends(self, part: Tensors, weights: Tensors, state: Tensors) -> _Ends:
        """Run one part, and return what it leaves."""
        outputs, losses, new = self._run(part, weights, state)
        floats, others = outputs.parted()
        added = tf.add_n([tf.cast(loss, self._type) for loss in losses]) if losses else self._zero
        return _Ends(floats, added / self._passes, others, new)

    @property
    def _type(self) -> str:
        """The type to add losses in."""
        is_double = any(variable.dtype == "float64" for variable in self._weights)
        return "float64" if is_double else "float32"

    @property
    def _zero(self) -> tf.Tensor:
        return tf.zeros([], self._type)

    def _forward(self, form: _Form, parts: Tensors, weights: Tensors, state: Tensors) -> _Ends:
        """The outputs of all parts one after another; their insides are not kept."""
        specs = [*form.floats, *form.others]
        arrays = [
            tf.TensorArray(spec.dtype, size=self._passes, element_shape=spec.shape)
            for spec in specs
        ]

        def one(turn: Any, added: Any, state: Tensors, arrays: list[Any]) -> Any:
            ends = self._ends(_part(parts, turn), weights, state)
            written = [
                array.write(turn, tensor)
                for array, tensor in zip(arrays, [*ends.floats, *ends.others], strict=True)
            ]
            return turn + 1, added + ends.added, ends.state, written

        _, added, left, arrays = tf.while_loop(
            lambda turn, *_: turn < self._passes,
            one,
            (tf.constant(0), self._zero, list(state), arrays),
            parallel_iterations=1,  # more would hold the memory of as many passes
        )
        whole = [_joined(array, spec, parts) for array, spec in zip(arrays, specs, strict=True)]
        count = len(form.floats)
        return _Ends(whole[:count], added, whole[count:], left)

    def _backward(
        self, parts: Tensors, weights: Tensors, state: Tensors, upstream: list[Any]
    ) -> list[Any]:
        """The gradients of the weights, summed over the parts, each computed once more."""
        *of_outputs, of_added = upstream
        sent = [split(each, self._passes) for each in of_outputs]

        reached = [False] * len(weights)  # by the outputs: known once a part is traced

        def one(turn: Any, state: Tensors, sums: Tensors) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                ends = self._ends(_part(parts, turn), weights, state)
                targets = [*ends.floats, ends.added]
            gradients = tape.gradient(
                targets, weights, output_gradients=[*_part(sent, turn), of_added]
            )
            added = list(sums)
            for index, gradient in enumerate(map(dense, gradients)):
                if gradient is not None:
                    reached[index] = True
                    added[index] += tf.cast(gradient, added[index].dtype)
            return turn + 1, ends.state, added

        zeros = [tf.zeros(each.shape, sum_type(each)) for each in weights]
        _, _, sums = tf.while_loop(
            lambda turn, *_: turn < self._passes,
            one,
            (tf.constant(0), list(state), zeros),
            parallel_iterations=1,
        )
        return [
            tf.cast(total, each.dtype) if is_reached else None
            for total, each, is_reached in zip(sums, weights, reached, strict=True)
        ]


def _value(variable: Any) -> tf.Tensor:
    """The value of a variable in its own type, whatever the policy."""
    return tf.convert_to_tensor(keras_private.tensorflow_variable(variable))


def _specs(tensors: Tensors) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(each.shape, each.dtype) for each in tensors]


def _part(parts: Tensors, turn: Any) -> Tensors:
    return [tf.gather(tensor, turn) for tensor in parts]


def _joined(array: Any, spec: tf.TensorSpec, parts: Tensors) -> tf.Tensor:
    """The outputs of all parts as one batch."""
    stacked = array.stack()
    rest = tf.shape(stacked)[2:]
    joined = tf.reshape(stacked, tf.concat([[-1], rest], axis=0))
    passes, size = parts[0].shape[:2]
    whole = None if size is None else passes * size
    joined.set_shape([whole, *spec.shape[1:]])
    return joined
