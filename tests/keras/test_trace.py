"""Sizes of tensors over the batch size, and graphs whose shapes are inferred anew."""

import keras
import pytest
import tensorflow as tf

from kbatch.runtime.liveness import most_elements
from kbatch.runtime.trace import PRIME, Moment, Size, reshaped, size_of

FIRST, SECOND, THIRD = Size(10.0, 3.0), Size(0.5, 0.0), Size(0.0, 7.0)


@pytest.mark.parametrize("batch_size", [0, 1, 32, 1000])
def test_lines_add_and_multiply_as_their_values(batch_size):
    one, other = FIRST.at(batch_size), SECOND.at(batch_size)
    assert one == 10.0 + 3.0 * batch_size
    assert (FIRST + SECOND).at(batch_size) == pytest.approx(one + other)
    assert FIRST.times(2.5).at(batch_size) == pytest.approx(2.5 * one)
    assert (FIRST + Size()).at(batch_size) == one


@pytest.mark.parametrize("batch_size", [1, 32])
def test_a_moment_is_the_sum_of_its_parts(batch_size):
    parts = (FIRST, SECOND, THIRD)
    total = Moment(*parts).total.at(batch_size)
    assert total == pytest.approx(sum(part.at(batch_size) for part in parts))


@pytest.mark.parametrize(("mode", "kept"), [("lstm", 6), ("gru", 5), ("rnn_tanh", 3)])
def test_what_cudnns_recurrent_layers_keep_is_estimated(mode, kept):
    @tf.function
    def step(x, state, weights):
        return tf.raw_ops.CudnnRNNV3(
            input=x,
            input_h=state,
            input_c=state,
            params=weights,
            sequence_lengths=tf.fill([PRIME], 7),
            rnn_mode=mode,
        )

    specs = [tf.TensorSpec(shape) for shape in ((7, PRIME, 5), (1, PRIME, 16), (1000,))]
    graph = step.get_concrete_function(*specs).graph
    layer = next(each for each in graph.get_operations() if each.type == "CudnnRNNV3")
    output, _, _, reserved, _ = layer.outputs
    assert size_of(output).per_example == 7 * 16 * 4
    assert size_of(reserved).per_example == kept * 7 * 16 * 4


def test_the_largest_tensor_is_found_in_loops_and_is_no_weight():
    weight = tf.Variable(tf.zeros((PRIME * 1000, 8)))

    @tf.function
    def inner(x):
        return tf.reduce_sum(tf.tile(x, (1, 300)))

    @tf.function
    def step(x):
        total = tf.reduce_sum(weight) + inner(x)
        for _ in tf.range(3):
            total += tf.reduce_sum(tf.tile(x, (1, 500)))
        return total

    graph = step.get_concrete_function(tf.TensorSpec((PRIME, 4))).graph
    assert most_elements(graph) == 2000


def traced(function, batch_size):
    return tf.function(function).get_concrete_function(tf.TensorSpec((batch_size, 6)))


def shapes(graph):
    return [
        (operation.type, [tuple(out.shape) for out in operation.outputs])
        for operation in graph.get_operations()
        if any(out.shape.rank for out in operation.outputs)
    ]


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_shapes_are_those_of_a_trace_at_that_size(batch_size):
    dense = keras.layers.Dense(4)
    dense.build((None, 6))

    def step(x):
        hidden = tf.nn.relu(dense(x))
        return tf.concat([hidden, tf.reduce_sum(x, 1, keepdims=True)], 1)

    found = reshaped(traced(step, None), batch_size)
    expected = traced(step, batch_size).graph
    assert [tuple(out.shape) for out in found.outputs] == [(batch_size, 5)]
    assert shapes(found) == shapes(expected)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: (y + 1.0,), [x])[0],
        lambda x: tf.cond(tf.reduce_sum(x) > 0.0, lambda: x, lambda: -x),
        lambda x: tf.function(lambda y: y + 1.0)(x),
    ],
    ids=["loop", "branch", "call"],
)
def test_a_graph_with_graphs_inside_is_left_to_another_trace(step):
    assert reshaped(traced(step, None), 5) is None
