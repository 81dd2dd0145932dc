"""Each private name of this library that kbatch uses is still there and does what kbatch needs."""

import forked
import pytest
import tensorflow as tf

from kbatch.data import datasets
from kbatch.runtime import tensorflow_private

VECTOR = tf.TensorSpec((None, 3))


def traced(function, *specs):
    return tf.function(function, autograph=False).get_concrete_function(*specs)


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


def test_custom_gradients_are_listed_and_forgotten():
    @tf.custom_gradient
    def twice(x):
        return 2 * x, lambda upstream: 2 * upstream

    before = tensorflow_private.custom_gradients()
    tf.function(twice).get_concrete_function(tf.TensorSpec((), "float32"))
    since = tensorflow_private.custom_gradients() - before
    assert since
    tensorflow_private.forget_custom_gradients(since)
    assert tensorflow_private.custom_gradients() == before


def test_dataset_inputs_lead_to_the_first_dataset():
    source = tf.data.Dataset.range(4)
    assert tensorflow_private.dataset_inputs(source.map(abs)) == [source]
    assert tensorflow_private.dataset_inputs(source) == []
    both = tensorflow_private.dataset_inputs(tf.data.Dataset.zip(source, source))
    assert both == [source, source]


@pytest.mark.parametrize("deterministic", [True, False])
def test_unordered_steps(deterministic):
    numbers = tf.data.Dataset.range(4)
    settings = {"num_parallel_calls": 2, "deterministic": deterministic}
    for step in (numbers.map(abs, **settings), numbers.batch(2, **settings)):
        assert tensorflow_private.is_unordered(step) is not deterministic
    assert not tensorflow_private.is_unordered(numbers)


def test_padding_values_and_names_of_steps():
    rows = tf.data.Dataset.range(3).map(lambda n: tf.range(n))
    padded = rows.padded_batch(3, padding_values=tf.constant(7, "int64"))
    assert int(tensorflow_private.padding_values(padded)) == 7
    assert type(padded).__name__ in datasets.PADS
    assert type(rows.cache()).__name__ in datasets.CACHES
    assert type(rows.shuffle(3)).__name__ in datasets.SHUFFLES
    kept = (rows.take(1), rows.skip(1), rows.prefetch(1), rows.shard(2, 0))
    asserted = rows.apply(tf.data.experimental.assert_cardinality(3))
    with_options = rows.with_options(tf.data.Options())
    for step in (*kept, asserted, with_options):
        assert type(step).__name__ in datasets.KEEP_ELEMENTS


def test_has_started_tells_the_first_operation():
    code = """
import tensorflow as tf
from kbatch.runtime import tensorflow_private
print(tensorflow_private.has_started())
tf.constant(1)
print(tensorflow_private.has_started())
"""
    assert forked.code(code).stdout.split() == ["False", "True"]


def test_memory_limits_of_the_cpu():
    limits = tensorflow_private.memory_limits("CPU")
    assert len(limits) == 1
    assert limits[0] > 0
    assert tensorflow_private.memory_limits("TPU") == []


def test_a_seed_state_is_put_back_exactly():
    before = tensorflow_private.seed_state()
    assert set(before) <= set(tensorflow_private.SEED_ATTRIBUTES)
    tf.random.set_seed(5)
    tf.random.uniform(())
    state = tensorflow_private.seed_state()
    assert state["_seed"] == 5
    assert "_rng" in state
    tensorflow_private.set_seed_state(before)
    assert tensorflow_private.seed_state() == before
