"""Each private name of this library that kbatch uses is still there and does what kbatch needs."""

import pytest
import tensorflow as tf

from kbatch.runtime import tensorflow_private


def traced(function, *specs):
    return tf.function(function, autograph=False).get_concrete_function(*specs)


VECTOR = tf.TensorSpec((None, 3))


def test_a_control_input_is_added():
    def step(x):
        first, second = tf.exp(x, name="first"), tf.tanh(x, name="second")
        tensorflow_private.add_control_input(second.op, first.op)
        return second

    graph = traced(step, VECTOR).graph
    assert [each.name for each in graph.outputs[0].op.inputs[0].op.control_inputs] == ["first"]


def test_an_input_is_replaced():
    def step(x):
        product = tf.multiply(x, x)
        tensorflow_private.update_input(product.op, 1, tf.constant(3.0))
        return product

    assert traced(step, tf.TensorSpec(()))(tf.constant(2.0)).numpy() == 6.0


def test_the_graph_of_a_function_is_found_in_an_outer_graph_too():
    def step(x):
        return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.exp(x)), (0, x))[1]

    loops = [each for each in traced(step, VECTOR).graph.get_operations() if "While" in each.type]
    types = {
        each.type for each in tensorflow_private.function_graph(loops[0], "body").get_operations()
    }
    assert "Exp" in types
    loop = tf.function(lambda x: tf.cond(x[0] > 0, lambda: tf.exp(x), lambda: x))
    graph = loop.get_concrete_function(tf.TensorSpec((3,))).graph
    branch = next(each for each in graph.get_operations() if each.type in ("If", "StatelessIf"))
    inner = tensorflow_private.function_graph(branch, "then_branch")
    assert "Exp" in {each.type for each in inner.get_operations()}


def test_an_unknown_function_is_a_key_error():
    concrete = traced(tf.exp, VECTOR)

    class Operation:
        graph = concrete.graph

        def get_attr(self, name):
            return tf.compat.v1.NameAttrList(name="nowhere")

    with pytest.raises(KeyError, match="nowhere"):
        tensorflow_private.function_graph(Operation(), "body")


def test_a_function_becomes_a_graph_with_names_of_tensors():
    concrete = traced(lambda x: tf.exp(x, name="power"), VECTOR)
    definition, names = tensorflow_private.graph_def_of_function(concrete.function_def)
    assert "power" in {node.name for node in definition.node}
    assert "power:0" in names.values()


@pytest.mark.parametrize("jit", [False, True])
def test_it_is_known_whether_xla_compiles_a_function(jit):
    told = []

    @tf.function(jit_compile=jit)
    def step(x):
        told.append(tensorflow_private.is_compiled_by_xla())
        return x

    step(tf.constant(1.0))
    assert told == [jit]


def test_random_operations_are_stateful_and_sums_are_not():
    assert tensorflow_private.is_stateful("RandomUniform")
    assert tensorflow_private.is_stateful("NoSuchOperation")
    assert not tensorflow_private.is_stateful("AddV2")
