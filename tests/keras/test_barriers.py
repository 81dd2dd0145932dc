"""Barriers: the tensors that they hold back, read from the graph they are traced into."""

import pytest
import tensorflow as tf

from kbatch.recompute._order import SegmentOrder, select_barrier, slice_barrier, together, wait


def after(graph, tensor):
    """Names of the operations that must have run before a tensor is known."""
    stack, names = [tensor.op], set()
    while stack:
        operation = stack.pop()
        if operation.name not in names:
            names.add(operation.name)
            stack += [*(each.op for each in operation.inputs), *operation.control_inputs]
    return names


def test_a_backward_pass_waits_only_for_tensors_it_needs():
    def step(x, upstream):
        sent = tf.identity(upstream)
        with tf.GradientTape() as tape:
            tape.watch(x)
            needed = tf.tanh(x, name="needed")
            once = tf.exp(needed, name="needed_too")
            last = tf.add(once, 1.0, name="not_needed")
        gradients = tape.gradient(last, [x], output_gradients=sent)
        wait([sent], [*gradients, None])
        return [sent, *gradients]

    graph = (
        tf.function(step)
        .get_concrete_function(tf.TensorSpec((None, 4)), tf.TensorSpec((None, 4)))
        .graph
    )
    names = after(graph, graph.outputs[0])
    assert {"needed", "needed_too"} <= names
    assert "not_needed" not in names


def test_a_backward_pass_skips_tensors_that_pass_known_values():
    def step(x, upstream):
        sent = tf.identity(upstream)
        with tf.GradientTape() as tape:
            tape.watch(x)
            known = tf.tanh(x, name="known")
            last = tf.exp(known, name="needed")
        gradients = tape.gradient(last, [x], output_gradients=sent)
        wait([sent], gradients, {id(known.op)})
        before = {each.name for each in sent.op.control_inputs[0].control_inputs}
        assert before == {"needed"}
        return gradients

    tf.function(step).get_concrete_function(tf.TensorSpec((None, 4)), tf.TensorSpec((None, 4)))


def test_control_dependence_on_upstream_needs_no_wait():
    @tf.custom_gradient
    def late(x):
        def gradient(upstream):
            with tf.control_dependencies([upstream]):
                again = tf.sigmoid(x)
            return upstream * again

        return tf.sigmoid(x), gradient

    @tf.function
    def step(x, upstream):
        sent = tf.identity(upstream)
        with tf.GradientTape() as tape:
            tape.watch(x)
            made = late(tf.tanh(x))
        gradients = tape.gradient(made, [x], output_gradients=sent)
        wait([sent], gradients)
        return gradients

    x = tf.constant([[0.5, -1.0]])
    tanh = tf.tanh(x)
    # a cycle would raise
    tf.debugging.assert_near(step(x, tf.ones((1, 2)))[0], tf.sigmoid(tanh) * (1 - tanh**2))


def test_gradients_leave_together():
    def step(x, y):
        of_weight = tf.sin(y, name="of_weight")
        return together([tf.tanh(x, name="one"), None, tf.exp(y, name="other")], [of_weight])[0]

    graph = tf.function(step).get_concrete_function(tf.TensorSpec((4,)), tf.TensorSpec((4,))).graph
    assert {"one", "other", "of_weight"} <= after(graph, graph.outputs[0])


@pytest.mark.parametrize(
    "ends", [lambda end: ([end, None], []), lambda end: ([], [None, end])], ids=["input", "weight"]
)
def test_segments_are_recomputed_one_after_another(ends):
    def step(x, y):
        turns = SegmentOrder(slice_barrier)
        first = turns.begin([x], [tf.tanh(x, name="upstream_of_first")])
        turns.end(*ends(tf.exp(first[0], name="end_of_first")))
        return turns.begin([y], [tf.tanh(y, name="upstream_of_second")])

    graph = tf.function(step).get_concrete_function(tf.TensorSpec((4,)), tf.TensorSpec((4,))).graph
    assert {"upstream_of_first", "end_of_first", "upstream_of_second"} <= after(
        graph, graph.outputs[0]
    )


def test_a_barrier_returns_equal_tensors():
    for barrier in (slice_barrier, select_barrier):
        turns = SegmentOrder(barrier)
        turns.end([tf.constant([1.0, float("nan")])], [])
        tensor = tf.constant([[1.0, float("nan")], [2.0, 3.0]])
        assert str(turns.begin([tensor], [tf.constant([float("nan")])])[0].numpy()) == str(
            tensor.numpy()
        )


def test_tensors_inside_a_loop_are_not_awaited_outside():
    turns = SegmentOrder(slice_barrier)

    @tf.function
    def step(x):
        for _ in tf.range(2):
            x = turns.end([tf.exp(x)], [])[0]
        return turns.begin([x], [tf.tanh(x)])[0]

    assert step(tf.zeros(2)).shape == (2,)
