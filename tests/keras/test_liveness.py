"""Memory of traced graphs: which tensors are alive when, and peaks of each half of a step."""

import pytest
import tensorflow as tf

from kbatch.runtime import device_memory
from kbatch.runtime.liveness import backward_peak, forward_peak, moments
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


@pytest.mark.parametrize("kind", ["SimpleRNN", "GRU", "LSTM"])
def test_what_a_loop_keeps_is_what_the_allocator_gives(kind):
    import keras

    layer = getattr(keras.layers, kind)
    model = keras.Sequential(
        [
            keras.Input((128, 2)),
            *(layer(64, return_sequences=True) for _ in range(3)),
            keras.layers.GlobalAveragePooling1D(),
        ]
    )
    model.compile("sgd", "mse", metrics=[])
    model.optimizer.build(model.trainable_variables)
    graph = traced(lambda x, y: model.train_step((x, y)), (PRIME, 128, 2), (PRIME, 64))
    x, y = tf.ones((256, 128, 2)), tf.ones((256, 64))
    step = tf.function(model.train_step, reduce_retracing=True)
    for _ in range(2):
        before = device_memory.bytes_now()
        device_memory.reset_peak()
        step((x, y))
    peak = device_memory.bytes_peak() - before
    assert top(graph, 256) == pytest.approx(peak, rel=0.08)


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


def backward_bytes(forward, backward, width=100):
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
        backward_bytes(
            tf.nn.relu,
            lambda value, upstream: tf.raw_ops.ReluGrad(gradients=upstream, features=value),
        )
        == 0
    )


def test_what_the_forward_pass_made_is_not_counted():
    assert backward_bytes(
        lambda x: [tf.tanh(x), tf.exp(x)], lambda values, upstream: tf.matmul(upstream, tf.eye(100))
    ) == pytest.approx(1, abs=0.01)


def test_what_is_alive_at_once_is_counted_at_once():
    def backward(value, upstream):
        one, other = tf.cumsum(value), tf.cumsum(upstream)
        return tf.reduce_sum(one * other)

    assert backward_bytes(tf.identity, backward) == pytest.approx(2, abs=0.01)


def test_an_upstream_that_is_read_late_stays():
    def backward(value, upstream):
        one = tf.cumsum(value)
        other = tf.cumsum(one)
        return tf.reduce_sum(tf.concat([one, other, upstream], 0))

    # both and their concatenation
    assert backward_bytes(tf.identity, backward) == pytest.approx(5, abs=0.01)


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
