"""The noise that is measured during training, against gradients taken one pass at a time."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from kbatch.models.accumulation import weighed_passes
from kbatch.models.compilation import CompileArguments
from kbatch.models.gradient_noise import INTERVAL, measured
from kbatch.models.losses import loss_count
from kbatch.models.maker import ModelMaker
from kbatch.models.policies import policy_scope
from kbatch.recipe import Recipe
from kbatch.recompute._apply import applied
from kbatch.rules.noise_scale import Smoothed, estimate

SPARSE = keras.losses.SparseCategoricalCrossentropy
RECIPE = Recipe(16, "sgd", 0.1, micro_batch_size=4)


def dense():
    return keras.Sequential(
        [keras.Input((5,)), layers.Dense(8, "relu"), layers.Dense(3, dtype="float32")]
    )


def sequences():
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True),
            layers.Dense(3, dtype="float32"),
        ]
    )


def words():
    """Its gradients are sparse, with the same row more than once."""
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(9, 4),
            layers.GlobalAveragePooling1D(),
            layers.Dense(3, dtype="float32"),
        ]
    )


class Subclassed(keras.Model):
    """Is built by its first batch."""

    def __init__(self):
        super().__init__()
        self.hidden, self.last = layers.Dense(8, "relu"), layers.Dense(3, dtype="float32")

    def call(self, inputs):
        return self.last(self.hidden(inputs))


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


def examples(build, number=64):
    rng = np.random.default_rng(1)
    if build in (dense, Subclassed):
        x = rng.normal(size=(number, 5)).astype("float32")
        return x, (x[:, 0] > 0) + (x[:, 1] > 0).astype("int32")
    x = rng.integers(1, 9, (number, 6))
    if build is words:
        return x, (x > 6).sum(axis=1) // 3
    return x * (np.arange(6) < rng.integers(1, 7, number)[:, None]), (x > 4) * 2


def made(build, recipe=RECIPE):
    return ModelMaker(build, CompileArguments(SPARSE(True))).make(recipe)


@contextlib.contextmanager
def surroundings(model, recipe=RECIPE, interval=1):
    with (
        policy_scope(recipe.policy, "float32"),
        weighed_passes(model, recipe) as pass_count,
        measured(model, recipe, pass_count, interval) as meter,
    ):
        yield meter


def fit(model, x, y, size=4, **arguments):
    model.fit(x, y, batch_size=size, shuffle=False, verbose=0, **arguments)


class Passes(keras.callbacks.Callback):
    """Takes the gradient of each pass by itself, with the weights of its update."""

    def __init__(self, x, y, meter, size=4, passes=4):
        super().__init__()
        self.x, self.y, self.meter, self.size, self.passes = x, y, meter, size, passes
        self.gradients, self.counts = [], []
        self.expected, self.measured = [], []

    def on_train_batch_begin(self, batch, logs=None):
        part = slice(batch * self.size, (batch + 1) * self.size)
        x, y = self.x[part], self.y[part]
        with tf.GradientTape() as tape:
            predicted = self.model(x, training=True)
            loss = SPARSE(True)(y, predicted)
        found = tape.gradient(loss, self.model.trainable_variables)
        flat = [tf.reshape(tf.convert_to_tensor(each), [-1]).numpy() for each in found]
        self.gradients.append(np.concatenate(flat).astype("float64"))
        self.counts.append(float(loss_count(SPARSE(True), y, predicted, None)))

    def on_train_batch_end(self, batch, logs=None):
        if len(self.gradients) < self.passes:
            return
        counts, gradients = np.array(self.counts), np.array(self.gradients)
        norm = np.average((gradients**2).sum(axis=1), weights=counts)
        mean = np.average(gradients, axis=0, weights=counts)
        self.expected.append(estimate(norm, (mean**2).sum(), self.size, self.passes))
        self.measured.append(self.meter.last()[1])
        self.gradients, self.counts = [], []


@pytest.mark.parametrize(
    ("build", "fields", "tolerance"),
    [
        (dense, {}, 1e-4),
        (dense, {"optimizer": "adam"}, 1e-4),
        (dense, {"jit_compile": True}, 1e-4),
        (dense, {"policy": "mixed_float16"}, 2e-2),
        (words, {}, 1e-4),
        (sequences, {}, 1e-4),
        (sequences, {"policy": "mixed_float16"}, 2e-2),
        (Subclassed, {}, 1e-4),
    ],
)
def test_every_update_is_that_of_single_gradients(build, fields, tolerance):
    recipe = Recipe(**{**vars(RECIPE), **fields})
    model, (x, y) = made(build, recipe), examples(build)
    smoothed = Smoothed()
    with surroundings(model, recipe) as meter:
        passes = Passes(x, y, meter)
        fit(model, x, y, callbacks=[passes])
    assert meter.last()[0] == len(passes.expected) == 4
    for expected, found in zip(passes.expected, passes.measured, strict=True):
        smoothed = smoothed.updated(found)
        scale = expected.trace / recipe.batch_size
        assert found.trace == pytest.approx(expected.trace, rel=tolerance)
        assert found.squared_norm == pytest.approx(expected.squared_norm, abs=tolerance * scale)
    assert meter.noise_scale() == pytest.approx(smoothed.critical_batch, rel=1e-4)


def test_recomputed_activations_make_no_difference():
    def residual():
        inputs = x = keras.Input((5,))
        for _ in range(4):
            x = layers.Add()([layers.Dense(5, "tanh")(x), x])
        return keras.Model(inputs, layers.Dense(3)(x))

    found = []
    for recompute in ("none", "minimal"):
        recipe = Recipe(16, "sgd", 0.1, micro_batch_size=4, recompute=recompute)
        model, (x, y) = made(residual, recipe), examples(dense)
        assert (applied(model) is None) == (recompute == "none")
        with surroundings(model, recipe) as meter:
            fit(model, x, y)
        found.append(meter.last()[1])
    assert found[0].trace == pytest.approx(found[1].trace, rel=1e-5)
    assert found[0].squared_norm == pytest.approx(found[1].squared_norm, rel=1e-4)


@pytest.mark.parametrize(
    ("build", "policy", "optimizer"),
    [
        (dense, "mixed_float16", "adam"),
        (words, "float32", "sgd"),
        (sequences, "float32", "adam"),
        (Subclassed, "float32", "adam"),
    ],
)
def test_measuring_changes_no_bit_of_the_training(build, policy, optimizer):
    recipe = Recipe(16, optimizer, 0.1, policy=policy, micro_batch_size=4)
    x, y = examples(build)
    weights = []
    for interval in (1, None):
        model = made(build, recipe)
        if interval is None:
            with policy_scope(policy, "float32"), weighed_passes(model, recipe):
                fit(model, x, y, epochs=2)
        else:
            with surroundings(model, recipe, interval):
                fit(model, x, y, epochs=2)
        weights.append([*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)])
    for own, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(own, other)


def test_one_update_in_eight_is_measured_by_default():
    model, (x, y) = made(dense), examples(dense, 16 * 9)
    with measured(model, RECIPE) as meter:
        passes = Passes(x, y, meter)
        fit(model, x, y, callbacks=[passes])
    assert INTERVAL == 8
    assert meter.last()[0] == 2  # the first and the ninth
    assert meter.last()[1].trace == pytest.approx(passes.expected[8].trace, rel=1e-4)
    assert passes.measured[5].trace == pytest.approx(passes.expected[0].trace, rel=1e-4)


def test_nothing_is_known_before_the_first_update():
    model, (x, y) = made(dense), examples(dense)
    with surroundings(model) as meter:
        assert meter.noise_scale() is None
        fit(model, x[:12], y[:12])  # three passes of four
        assert meter.noise_scale() is None
        fit(model, x[12:16], y[12:16])
        assert meter.last()[0] == 1


def test_a_window_that_began_before_is_left_out():
    model, (x, y) = made(dense), examples(dense)
    fit(model, x[:8], y[:8])
    with surroundings(model) as meter:
        fit(model, x[8:16], y[8:16])
        assert meter.last()[0] == 0
        fit(model, x[16:32], y[16:32])
        assert meter.last()[0] == 1


def test_updates_that_are_not_finite_are_left_out():
    model, (x, y) = made(dense), examples(dense)
    with surroundings(model) as meter:
        fit(model, x, y)
        before = meter.noise_scale(), meter.last()
        fit(model, x[:16], y[:16], sample_weight=np.where(np.arange(16) == 9, np.nan, 1.0))
        assert np.isnan(model.get_weights()[0]).any()
        assert (meter.noise_scale(), meter.last()) == before
        assert before[0] > 0


def test_updates_that_loss_scaling_skips_are_left_out():
    recipe = Recipe(16, "sgd", 0.1, policy="mixed_float16", micro_batch_size=4)
    model, (x, y) = made(dense, recipe), examples(dense)
    model.optimizer.build(model.trainable_variables)
    model.optimizer.dynamic_scale.assign(2.0**40)
    with surroundings(model, recipe) as meter:
        fit(model, x, y, epochs=5)
        made_updates = int(model.optimizer.iterations)
        assert 0 < made_updates < 20
        updates, estimate_of_last = meter.last()
        assert updates == made_updates
        assert 0 < estimate_of_last.trace < 100


def test_a_growing_batch_is_measured_at_its_size():
    recipe = Recipe(16, "sgd", 1e-9, micro_batch_size=8, batch_schedule="linear:4")
    model, (x, y) = made(dense, recipe), examples(dense)
    with surroundings(model, recipe) as meter:
        for size in (2, 8):
            passes = Passes(x, y, meter, size, 2)
            fit(model, x[: 4 * size], y[: 4 * size], size, callbacks=[passes])
            for expected, found in zip(passes.expected, passes.measured, strict=True):
                assert found.trace == pytest.approx(expected.trace, rel=1e-4)
    assert "compute_loss" not in vars(model)


@pytest.mark.parametrize(
    ("build", "recipe"),
    [
        (dense, Recipe(16, "sgd", 0.1)),
        (dense, Recipe(16, "sgd", 0.1, micro_batch_size=4, training="sam:0.05")),
        (
            lambda: OwnStep([keras.Input((5,)), layers.Dense(3)]),
            Recipe(16, "sgd", 0.1, micro_batch_size=4, batch_schedule="linear:2"),
        ),
    ],
    ids=["one pass", "sam", "growth in an own step"],
)
def test_other_trainings_are_not_measured(build, recipe):
    model = build()
    model.compile("sgd", "mse")
    with measured(model, recipe) as meter:
        assert meter is None
        assert "apply" not in vars(model.optimizer)


@pytest.mark.parametrize("build", [dense, sequences])
def test_the_model_is_as_it_was_even_after_an_error(build):
    model, (x, y) = made(build), examples(build)
    config = model.optimizer.get_config()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), surroundings(model):
            fit(model, x, y)
            raise ZeroDivisionError
        assert "compute_loss" not in vars(model)
        assert "apply" not in vars(model.optimizer)
        assert model.train_function is None
    assert model.optimizer.get_config() == config
    fit(model, x, y)


def test_a_step_of_the_users_own_is_measured():
    model = made(lambda: OwnStep([keras.Input((5,)), layers.Dense(3)]))
    x, y = examples(dense)
    with surroundings(model) as meter:
        fit(model, x, y)
    assert meter.last()[0] == 4
