"""Reuse: small results are not recomputed, and gradients of any order are the plain model's."""

import keras
import numpy as np
import pytest
import recompute_models
import tensorflow as tf
from keras import layers
from tensorflow.python.eager import context

from kbatch import recompute
from kbatch.recompute._costs import costs_of
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._order import small_results
from kbatch.recompute._planner import plan


@pytest.fixture(autouse=True)
def own_policy():
    yield
    keras.config.set_dtype_policy("float32")


def names_of(function, *arguments):
    """Types of the operations that TensorFlow runs, after its graph optimizer."""
    context.enable_graph_collection()
    try:
        function(*arguments)
        graphs = context.export_run_metadata().partition_graphs
    finally:
        context.disable_graph_collection()
    return [
        node.op
        for graph in graphs
        for node in [
            *graph.node,
            *(node for function in graph.library.function for node in function.node_def),
        ]
    ]


def normalised():
    """Convolutions with BatchNormalization and an activation that has a gradient of its own."""
    inputs = x = keras.Input((16, 16, 3))
    for _ in range(2):
        x = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(x))
        x = layers.Activation("silu")(x)
    model = keras.Model(inputs, recompute_models.head(layers.GlobalAveragePooling2D()(x)))
    return model, recompute_models.images()


def test_reduced_tensors_and_results_of_only_those_are_small():
    @tf.function
    def step(x, weight):
        mean = tf.reduce_mean(x, (0, 1, 2), name="mean")
        root = tf.sqrt(mean, name="root")
        half = tf.multiply(weight, 0.5, name="half")
        tf.add(tf.multiply(x, root, name="product"), half, name="sum")
        return tf.broadcast_to(root, (61 * 64, 16), name="wide")

    graph = step.get_concrete_function(tf.TensorSpec((None, 8, 8, 16)), tf.TensorSpec((16,))).graph
    large = {"half", "product", "sum", "wide"}
    assert large <= {operation.name for operation in graph.get_operations()}
    names = {
        tensor.op.name for tensor in small_results(graph.get_operations(), {id(graph.inputs[1])})
    }
    assert {"mean", "root"} <= names
    assert not large & names


def test_rows_of_a_large_table_are_not_small():
    table = tf.Variable(tf.zeros((4096, 4)))

    @tf.function
    def step(x):
        value = table.read_value()
        return tf.gather(value, tf.cast(x, tf.int32), name="gathered")

    graph = step.get_concrete_function(tf.TensorSpec((None,))).graph
    operations = [
        operation
        for operation in graph.get_operations()
        if operation.name.startswith(("gathered", "Cast"))
    ]
    assert small_results(operations, set()) == []


@pytest.mark.parametrize("shape", [(None, 16, 64), (None, None, 64)])
def test_rows_of_an_unknown_number_are_not_small(shape):
    """Dense makes rows of batch and time, whose number no trace with an open batch tells."""
    dense = layers.Dense(128)
    dense.build((None, 16, 64))
    graph = tf.function(dense).get_concrete_function(tf.TensorSpec(shape)).graph
    assert {"MatMul", "Reshape"} <= {operation.type for operation in graph.get_operations()}
    given = {id(tensor) for tensor in graph.inputs[1:]}
    assert small_results(graph.get_operations(), given) == []


def gradients_of(model, x, y):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    return step


def test_no_statistic_of_a_batch_is_recomputed():
    model, (x, y) = normalised()
    model.compile("sgd", "sparse_categorical_crossentropy")
    plain = names_of(gradients_of(model, tf.constant(x), tf.constant(y)))
    recompute.apply(
        model,
        plan(
            model,
            len(x),
            "manual",
            layers=[layer.name for layer in model.layers if "conv2d" in layer.name],
        ),
    )
    segments = names_of(gradients_of(model, tf.constant(x), tf.constant(y)))
    assert segments.count("AddV2") > plain.count("AddV2")  # the normalised activations are
    for name in ("Mean", "SquaredDifference"):
        assert segments.count(name) == plain.count(name) > 0


def test_a_second_gradient_flows_through_shared_values():
    model, (x, _) = normalised()
    x = tf.constant(x)

    def penalty():
        @tf.function
        def slope(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = model(x, training=True)[:, 0] ** 2
            return tape.gradient(y, x)

        with tf.GradientTape() as outer:
            outer.watch(x)
            loss = tf.reduce_sum(tf.square(slope(x)))
        return loss, outer.gradient(loss, [x, *model.trainable_variables])

    state = model.get_weights()
    plain = penalty()
    model.set_weights(state)
    recompute.apply(
        model,
        plan(
            model,
            len(x),
            "manual",
            layers=[layer.name for layer in model.layers if "conv2d" in layer.name],
        ),
    )
    planned = penalty()
    for one, other in zip(tf.nest.flatten(plain), tf.nest.flatten(planned), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_costs_leave_shared_results_out_of_recomputation(policy):
    keras.config.set_dtype_policy(policy)
    model, _ = normalised()
    graph = OpGraph(model)
    kinds = {
        type(node.operation).__name__: cost
        for node, cost in zip(graph.nodes, costs_of(graph).nodes, strict=True)
    }
    assert (
        kinds["BatchNormalization"].recompute_work < 0.7 * kinds["BatchNormalization"].forward_work
    )
    assert kinds["Conv2D"].recompute_work == kinds["Conv2D"].forward_work
    assert kinds["GlobalAveragePooling2D"].recompute_work == 0.0
    assert kinds["GlobalAveragePooling2D"].recompute_reads == frozenset()


@pytest.mark.parametrize("kind", ["jacobian", "batch_jacobian"])
@pytest.mark.parametrize("traced", [True, False])
def test_a_jacobian_is_that_of_the_plain_model(kind, traced):
    inputs = x = keras.Input((5,))
    for _ in range(4):
        x = layers.Dense(5, "tanh")(x)
    model = keras.Model(inputs, layers.Dense(3)(x))

    def rows(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x, training=True)
        return getattr(tape, kind)(y, x)

    batch = tf.constant(np.random.default_rng(0).normal(size=(4, 5)), "float32")
    plain = (tf.function(rows) if traced else rows)(batch)
    recompute.apply(model, plan(model, 4, "sqrt"))
    np.testing.assert_allclose((tf.function(rows) if traced else rows)(batch), plain, atol=1e-6)
