"""A step traced for any batch size, given the shapes of one: the same as a trace at that size."""

import keras
import pytest
import tensorflow as tf

from kbatch.runtime.trace import reshaped


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
