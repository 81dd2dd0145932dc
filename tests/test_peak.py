"""Peaks of both halves of a graph, known by hand."""

import pytest
import tensorflow as tf

from kbatch.runtime.liveness import backward_peak, forward_peak
from kbatch.runtime.trace import PRIME


def traced(forward, backward, width=100):
    """Peak bytes of the backward pass for one example, not counting the forward pass and inputs."""
    begin, given = 0, []

    def step(x, upstream):
        nonlocal begin
        values = forward(x)
        given.append(upstream)
        begin = len(tf.compat.v1.get_default_graph().get_operations())
        return backward(values, upstream)

    spec = tf.TensorSpec((PRIME, width), tf.float32)
    graph = tf.function(step).get_concrete_function(spec, spec).graph
    return backward_peak(graph, begin, given).per_example / (4 * width)  # in tensors


def test_what_is_written_into_the_upstream_takes_nothing():
    assert (
        traced(
            tf.nn.relu,
            lambda value, upstream: tf.raw_ops.ReluGrad(gradients=upstream, features=value),
        )
        == 0
    )


def test_what_the_forward_pass_made_is_not_counted():
    assert traced(
        lambda x: [tf.tanh(x), tf.exp(x)], lambda values, upstream: tf.matmul(upstream, tf.eye(100))
    ) == pytest.approx(1, abs=0.01)


def test_what_is_alive_at_once_is_counted_at_once():
    def backward(value, upstream):
        one, other = tf.cumsum(value), tf.cumsum(upstream)
        return tf.reduce_sum(one * other)

    assert traced(tf.identity, backward) == pytest.approx(2, abs=0.01)


def test_an_upstream_that_is_read_late_stays():
    def backward(value, upstream):
        one = tf.cumsum(value)
        other = tf.cumsum(one)
        return tf.reduce_sum(tf.concat([one, other, upstream], 0))

    # both and their concatenation
    assert traced(tf.identity, backward) == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize(
    ("forward", "tensors"),
    [
        (tf.nn.relu, 1),
        (lambda x: tf.nn.relu(tf.exp(x)), 1),  # written into what it reads
        # the first is given up before the third is made
        (lambda x: tf.cumsum(tf.cumsum(tf.cumsum(x))), 2),
        (lambda x: tf.reshape(x, (-1,)), 0),
    ],
)
def test_a_forward_pass_holds_what_it_made_and_needs_yet(forward, tensors):
    end = 0

    def step(x):
        nonlocal end
        value = forward(x)
        end = len(tf.compat.v1.get_default_graph().get_operations())
        return tf.concat([value] * 9, 0)

    graph = tf.function(step).get_concrete_function(tf.TensorSpec((PRIME, 100), tf.float32)).graph
    assert forward_peak(graph, end).per_example / 400 == pytest.approx(tensors, abs=0.01)
