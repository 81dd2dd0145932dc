"""Segments train to the bit as plain layers do, with all their gradients and weight reads."""

import collections
from contextlib import contextmanager

import forked
import keras
import numpy as np
import pytest
import recompute_models
import tensorflow as tf
from graph_reads import freed
from recompute_plans import compiled, cut, plain_trained_once, slow

from kbatch import recompute
from kbatch.runtime.liveness import needed

pytestmark = pytest.mark.usefixtures("own_policy")


LONGER = (
    recompute_models.noisy,
    recompute_models.shared,
    recompute_models.regularised,
    recompute_models.tokens,
)


def three_blocks():
    """Where the outcome hangs on the numbers: on what overflows, or is rounded by fused kernels."""
    return recompute_models.residual(blocks=3)


def assert_training_is_the_same_to_the_bit(build, policy, optimizer=None):
    model, data = compiled(build, policy, optimizer)
    report = recompute.verify(model, cut(model), *data)
    assert report.exact, str(report)
    assert str(report).startswith("Exact")


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("build", recompute_models.BUILDS, ids=lambda build: build.__name__)
@pytest.mark.slow
def test_training_is_the_same_to_the_bit_under_other_policies(build, policy):
    assert_training_is_the_same_to_the_bit(build, policy, keras.optimizers.Adam(0.01))


@pytest.mark.parametrize("policy", ["float64", "mixed_float16"])
@pytest.mark.parametrize("build", recompute_models.BUILDS, ids=lambda build: build.__name__)
def test_training_is_the_same_to_the_bit(build, policy):
    assert_training_is_the_same_to_the_bit(build, policy)


@pytest.mark.slow
def test_resnet50_at_128_px_is_the_same_to_the_bit():
    def build():
        rng = np.random.default_rng(0)
        model = keras.applications.ResNet50(weights=None, input_shape=(128, 128, 3), classes=10)
        return model, (rng.random((16, 128, 128, 3)).astype("float32"), rng.integers(0, 10, 16))

    model, data = compiled(build, optimizer=keras.optimizers.SGD(0.01))
    report = recompute.verify(model, recompute.plan(model, 16), *data)
    assert report.exact, str(report)


def test_a_segment_of_an_output_without_a_loss_is_the_same():
    model, (x, y) = compiled(recompute_models.shared)
    model.compile(
        "sgd", {"kind": "sparse_categorical_crossentropy", "size": None}, jit_compile=False
    )
    assert recompute.verify(model, cut(model, 5), x, {"kind": y["kind"], "size": y["size"]}).exact


def test_it_is_the_same_run_eagerly():
    model, data = compiled(recompute_models.residual, run_eagerly=True)
    assert recompute.verify(model, cut(model), *data).exact


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [recompute_models.one_block, recompute_models.hiding, *map(slow, LONGER)],
    ids=lambda build: build.__name__,
)
def test_under_xla_only_rounding_differs(build):
    model, data = compiled(build, "float64", jit_compile=True)
    report = recompute.verify(model, cut(model), *data)
    assert max(report.loss, report.gradients, report.weights, report.state) < 1e-9, str(report)


@pytest.mark.parametrize("jit", [False, True])
def test_a_custom_training_loop_decides_about_xla_itself(jit):
    model, (x, y) = compiled(recompute_models.one_block, "float64", jit_compile=not jit)
    start = [np.array(v) for v in model.variables]

    @tf.function(jit_compile=jit)
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(y, model(x, training=True))
            )
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    plain = gradients(tf.constant(x, "float64"), tf.constant(y))
    for variable, value in zip(model.variables, start, strict=True):
        variable.assign(value)
    recompute.apply(model, cut(model))
    again = gradients.python_function
    planned = tf.function(again, jit_compile=jit)(tf.constant(x, "float64"), tf.constant(y))
    assert max(float(np.abs(a - b).max()) for a, b in zip(plain, planned, strict=True)) < 1e-12


def test_it_is_the_same_with_accumulation():
    model, data = compiled(
        recompute_models.residual,
        optimizer=keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    )
    assert recompute.verify(model, cut(model), *data).exact


def test_it_is_the_same_while_and_after_a_scaled_loss_overflows():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**20)
    model, data = compiled(three_blocks, "mixed_float16", optimizer=scaled)
    assert recompute.verify(model, cut(model), *data).exact
    assert float(np.array(scaled.dynamic_scale)) == 2.0**20  # as it was before
    recompute.apply(model, cut(model))
    start = [np.array(v) for v in model.trainable_variables]
    changed = []
    for _ in range(3):
        model.train_on_batch(*data)
        changed.append(
            any(
                not np.array_equal(v, before)
                for v, before in zip(model.trainable_variables, start, strict=True)
            )
        )
    assert changed == [False, False, True]
    assert float(np.array(scaled.dynamic_scale)) == 2.0**18


def test_masks_cross_cuts():
    keras.config.set_floatx("float64")
    layers = keras.layers

    def build(masked):
        embedding = layers.Embedding(50, 8, mask_zero=masked, name="embedding")
        recurrent = layers.LSTM(8, return_sequences=True, name="lstm"), layers.GRU(8, name="gru")
        model = keras.Sequential(
            [keras.Input((12,), dtype="int32"), embedding, *recurrent, layers.Dense(4)]
        )
        model.compile(
            "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
        )
        return model

    model, unmasked = build(True), build(False)
    tokens, labels = recompute_models.tokens()[1]
    tokens[:, 7:] = 0
    plan = recompute.plan(model, 16, "manual", layers=["embedding", "lstm", "gru"])
    assert [segment.recompute for segment in plan.segments] == [True, True, True, False]
    assert recompute.verify(model, plan, tokens, labels).exact
    unmasked.set_weights(model.get_weights())
    other, one = (
        float(each.compute_loss(y=labels, y_pred=each(tokens))) for each in (unmasked, model)
    )
    assert other != pytest.approx(one, rel=1e-6)


def fitted(model, data, planned, **arguments):
    start = [np.array(v) for v in [*model.variables, *model.optimizer.variables]]
    recompute.remove(model)
    if planned:
        recompute.apply(model, cut(model))
    history = model.fit(*data, shuffle=False, verbose=0, **arguments).history["loss"]
    found = [np.array(v) for v in model.variables]
    for variable, value in zip([*model.variables, *model.optimizer.variables], start, strict=True):
        variable.assign(value)
    return history, found


def print_difference_in_fit(arguments):
    model, data = compiled(
        three_blocks,
        optimizer=keras.optimizers.Adam(0.01),
        steps_per_execution=2 if arguments["batch_size"] == 4 else 1,
    )
    model.optimizer.build(model.trainable_variables)
    plain, planned = (
        fitted(model, data, planned=False, **arguments),
        fitted(model, data, planned=True, **arguments),
    )
    assert plain[0] == planned[0]
    print(max(float(np.abs(a - b).max()) for a, b in zip(plain[1], planned[1], strict=True)))


@pytest.mark.parametrize(
    "arguments", [{"batch_size": 5, "epochs": 2}, {"batch_size": 4, "epochs": 1}]
)
def test_fit_is_the_same_with_partial_batches_and_grouped_steps(arguments):
    # without oneDNN, which fuses other operations in a segment than in a plain step
    said = forked.run(print_difference_in_fit, arguments)
    assert said.stdout.splitlines()[-1:] == ["0.0"], said.stdout + said.stderr[-2000:]


def test_a_gradient_of_a_gradient_is_the_same():
    model, (x, _) = compiled(recompute_models.shared, "float64")
    inputs = {name: tf.constant(part, "float64") for name, part in x.items()}

    @tf.function(jit_compile=False)
    def penalty():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(inputs["a"])
                out = model(inputs, training=True)["size"]
            loss = tf.reduce_sum(inner.gradient(out, inputs["a"]) ** 2)
        return [
            each
            for each in outer.gradient(loss, [v.value for v in model.trainable_variables])
            if each is not None
        ]

    start = [np.array(v) for v in model.variables]
    plain = penalty()
    for variable, value in zip(model.variables, start, strict=True):
        variable.assign(value)
    recompute.apply(model, cut(model))
    penalty_planned = tf.function(penalty.python_function, jit_compile=False)
    for one, other in zip(plain, penalty_planned(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def train_in_replicas(build, planned):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        keras.utils.set_random_seed(3)
        model, (x, y) = build()
        model.compile(
            keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", jit_compile=False
        )
    if planned:
        recompute.apply(model, cut(model))
    model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return [np.array(v) for v in model.variables]


def print_difference_in_replicas(build):
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    pairs = zip(train_in_replicas(build, False), train_in_replicas(build, True), strict=True)
    print(max(float(np.abs(plain - planned).max()) for plain, planned in pairs))


@pytest.mark.parametrize(
    "build",
    [recompute_models.residual, slow(recompute_models.hiding)],
    ids=lambda build: build.__name__,
)
def test_two_replicas_train_as_without_a_plan(build):
    said = forked.run(print_difference_in_replicas, build)
    assert said.stdout.splitlines()[-1:] == ["0.0"], said.stdout + said.stderr[-2000:]


def frozen_front(model):
    for layer in model.layers[: len(model.layers) // 2]:
        layer.trainable = False


def frozen_statistics(model):
    for layer in model.layers:
        layer.trainable = not isinstance(layer, keras.layers.BatchNormalization)


def only_the_head(model):
    for layer in model.layers[:-1]:
        layer.trainable = False


def one_frozen_weight(model):
    next(
        layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D)
    ).kernel.trainable = False


@pytest.mark.parametrize(
    "freeze",
    [one_frozen_weight, frozen_front, slow(frozen_statistics), slow(only_the_head)],
    ids=lambda freeze: freeze.__name__,
)
def test_what_is_frozen_stays_and_the_rest_is_the_same(freeze):
    def build():
        model, data = recompute_models.residual()
        freeze(model)
        return model, data

    model, data = compiled(build, "float64")
    trained = len(model.trainable_variables)
    assert 0 < trained < len(compiled(recompute_models.residual, "float64")[0].trainable_variables)
    assert recompute.verify(model, cut(model), *data).exact


def in_use(model, data):
    """How often each kind of operation is in a traced step, those that nothing needs left out."""

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(y, model(x, training=True))
            )
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    return collections.Counter(
        operation.type
        for operation in needed(step.get_concrete_function(*map(tf.constant, data)).graph)
    )


def test_no_gradient_is_made_that_leads_to_nothing_trained():
    x, y = recompute_models.images()
    inputs = keras.Input((16, 16, 3))
    value, other = inputs, keras.layers.Conv2D(4, 3, padding="same", trainable=False)(inputs)
    for index in range(6):
        value = keras.layers.Conv2D(4, 3, padding="same", activation="relu", trainable=index > 2)(
            value
        )
        other = keras.layers.Conv2D(4, 3, padding="same", activation="relu", trainable=False)(other)
        value = keras.layers.Add()([value, other])
    model = keras.Model(inputs, recompute_models.head(keras.layers.GlobalAveragePooling2D()(value)))
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    plain = in_use(model, (x, y))
    plans = (
        recompute.plan(model, 16, "sqrt"),
        recompute.plan(model, 16, "minimal"),
        cut(model, 6),
    )
    with plain_trained_once():
        assert all(recompute.verify(model, plan, x, y).exact for plan in plans)
    for plan in plans:
        recompute.apply(model, plan)
        found = in_use(model, (x, y))
        assert found["Conv2D"] > plain["Conv2D"]
        assert all(
            found[kind] == plain[kind]
            for kind in ("Conv2DBackpropInput", "Conv2DBackpropFilter", "ReluGrad")
        )


@contextmanager
def sums_and_products_as_written():
    """Keep TensorFlow's graph optimizer, but not its rewrites that round otherwise."""
    rounding = ("arithmetic_optimization", "remapping", "constant_folding")
    tf.config.optimizer.set_experimental_options(dict.fromkeys(rounding, False))
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options(dict.fromkeys(rounding, True))


def retraced(build, times):
    """What a plan changes in any variable at most, and the reads that its last trace sets free.

    Two steps of a fresh trace are trained, as often as `times` says. The reads are looked for in
    the last of them, with the whole graph optimizer.
    """
    model, data = compiled(build, optimizer=keras.optimizers.SGD(0.5))
    model.optimizer.build(model.trainable_variables)
    start = [np.array(v) for v in [*model.variables, *model.optimizer.variables]]

    def step():
        for variable, value in zip(
            [*model.variables, *model.optimizer.variables], start, strict=True
        ):
            variable.assign(value)
        model.train_function = None  # a fresh trace, in which another order may be lost
        for _ in range(2):
            model.train_on_batch(*data)
        return [np.array(v) for v in [*model.variables, *model.optimizer.variables]]

    with sums_and_products_as_written():
        plain = step()
        recompute.apply(model, cut(model))
        difference = max(
            float(np.abs(a - b).max())
            for _ in range(times)
            for a, b in zip(plain, step(), strict=True)
        )
    return difference, freed(lambda: model.train_on_batch(*data))


@pytest.fixture(scope="module", params=recompute_models.BUILDS, ids=lambda build: build.__name__)
def five_traces(request):
    return retraced(request.param, 5)


def test_no_trace_reads_updated_weights(five_traces):
    difference, _ = five_traces
    assert difference == 0


def test_no_read_follows_the_update_in_the_optimized_graph(five_traces):
    _, reads = five_traces
    assert reads == set()


@pytest.mark.slow
@pytest.mark.parametrize("build", recompute_models.BUILDS, ids=lambda build: build.__name__)
def test_none_of_fifty_traces_reads_updated_weights(build):
    # TensorFlow keeps megabytes of every trace for the life of a process
    with forked.ForkedWorker() as worker:
        assert worker.call(retraced, build, 50, timeout_seconds=1800) == (0, set())


class Remade(keras.layers.Layer):
    """A stack under `tf.recompute_grad`, which reads the weights again in the backward pass."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, inputs, training=None):
        return tf.recompute_grad(lambda x: self.inner(x, training=training))(inputs)


def test_the_search_for_such_reads_finds_those_of_recompute_grad():
    inner = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization()]
    )
    model = keras.Sequential([keras.Input((8,)), Remade(inner), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    found = freed(lambda: model.train_on_batch(np.ones((4, 8)), np.ones((4, 1))))
    assert len(found) == 1, found
    assert "batch_normalization" in found.pop()
