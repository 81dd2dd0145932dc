"""Work of operations: what a product costs is what its sums of products count."""

import pytest
import tensorflow as tf

from kbatch.recompute._costs import BYTES_PER_FLOP, work_of
from kbatch.runtime.trace import PRIME


def operation(function, kind, *shapes):
    specs = [tf.TensorSpec(shape) for shape in shapes]
    graph = tf.function(function).get_concrete_function(*specs).graph
    return next(each for each in graph.get_operations() if each.type == kind)


def expected(flops, *sizes):
    return (4 * sum(sizes) + BYTES_PER_FLOP * flops) / PRIME


def test_a_matrix_product_multiplies_and_adds_each_pair():
    m, k, n = PRIME, 6, 10
    product = operation(tf.matmul, "MatMul", (m, k), (k, n))
    assert work_of(product, {}) == pytest.approx(expected(2 * m * k * n, m * k, k * n, m * n))


def test_a_convolution_multiplies_its_kernel_with_each_place():
    image, kernel, out = (PRIME, 8, 8, 3), (3, 3, 3, 5), (PRIME, 8, 8, 5)
    found = operation(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), "Conv2D", image, kernel)
    sizes = [PRIME * 8 * 8 * 3, 3 * 3 * 3 * 5, PRIME * 8 * 8 * 5]
    assert found.outputs[0].shape == out
    assert work_of(found, {}) == pytest.approx(expected(2 * 27 * sizes[2], *sizes))


def test_other_operations_only_move_bytes():
    size = PRIME * 7
    assert work_of(operation(tf.tanh, "Tanh", (PRIME, 7)), {}) == expected(0, size, size)
    reshaped = operation(lambda x: tf.reshape(x, (-1,)), "Reshape", (PRIME, 7))
    assert work_of(reshaped, {}) == 0.0


def test_a_loop_of_unknown_turns_works_at_least_once():
    def step(x):
        return tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: (tf.tanh(y),), [x])[0]

    graph = tf.function(step).get_concrete_function(tf.TensorSpec((PRIME, 7))).graph
    loop = next(each for each in graph.get_operations() if "While" in each.type)
    assert work_of(loop, {}) >= expected(0, PRIME * 7, PRIME * 7)
