"""Liveness of steps whose answer is known by hand."""

import pytest
import tensorflow as tf

from kbatch.runtime.liveness import moments
from kbatch.runtime.trace import PRIME, Size


def traced(function, *shapes):
    return (
        tf.function(function)
        .get_concrete_function(*(tf.TensorSpec(shape, tf.float32) for shape in shapes))
        .graph
    )


def top(graph, batch_size=1000):
    return max(moment.total.at(batch_size) for moment in moments(graph))


def test_operations_in_place_hold_one_tensor():
    graph = traced(
        lambda x: tf.nn.relu(tf.tanh(tf.nn.relu(tf.matmul(x, tf.ones((4, 100)))))), (PRIME, 4)
    )
    assert top(graph) == pytest.approx(1000 * 400, rel=0.02)


def test_a_tensor_that_is_needed_later_stays():
    def step(x):
        first = tf.matmul(x, tf.ones((4, 100)))
        second = tf.matmul(tf.tanh(first), tf.ones((100, 100)))
        return first + second

    # first, tanh(first) and the product are alive together.
    assert top(traced(step, (PRIME, 4))) == pytest.approx(3 * 1000 * 400, rel=0.05)


def test_operations_that_nobody_needs_do_not_count():
    def step(x):
        tf.matmul(x, tf.ones((4, 10_000)))
        return x * 2

    assert top(traced(step, (PRIME, 4))) < 1000 * 100


def test_reshaping_costs_nothing():
    graph = traced(
        lambda x: tf.reshape(tf.reshape(tf.matmul(x, tf.ones((4, 100))), (-1, 10, 10)), (-1, 100)),
        (PRIME, 4),
    )
    assert top(graph) == pytest.approx(1000 * 400, rel=0.02)


def test_gradients_hold_activations_and_are_counted_apart():
    weights = [tf.Variable(tf.ones((100, 100))) for _ in range(5)]

    def step(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.tanh(tf.matmul(x, weight))
            loss = tf.reduce_sum(x)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(gradient)
        return loss

    found = max(moments(traced(step, (PRIME, 100))), key=lambda moment: moment.total.at(1000))
    # five outputs and what flows back
    assert found.activations.at(1000) == pytest.approx(1000 * 400 * 6, rel=0.25)
    assert found.gradients.per_example == 0


def test_recurrent_layers_are_counted_for_every_step():
    import keras

    model = keras.Sequential([keras.Input((40, 8)), keras.layers.LSTM(32), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    graph = traced(lambda x, y: model.train_step((x, y)), (PRIME, 40, 8), (PRIME, 1))
    assert top(graph) >= 1000 * 40 * 32 * 4 * 4  # at least the gates and states of all forty steps


def test_sizes_are_lines():
    assert (Size(1, 2) + Size(3, 4)).times(2) == Size(8, 12)
    assert Size(10, 2).at(5) == 20


@pytest.mark.parametrize("assign", ["assign", "assign_add"])
def test_a_value_that_outlives_its_variable_is_held_besides(assign):
    """SAM keeps the weights while the variables hold others: one more copy of them."""
    weights = tf.Variable(tf.ones((1000, 100)))

    def step(keeping):
        def run(x):
            before = tf.identity(weights.read_value())
            getattr(weights, assign)(tf.ones((1000, 100)))
            y = tf.matmul(tf.matmul(x, weights), tf.ones((100, 4)))
            if keeping:
                weights.assign(before)
            return y

        return run

    kept, dropped = (top(traced(step(keeping), (PRIME, 1000)), 1) for keeping in (True, False))
    assert kept - dropped == pytest.approx(4 * 100_000, rel=0.05)
