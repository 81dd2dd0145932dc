"""Training by SAM and the proximal method, with all that may come with it."""

import keras
import method_models
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from method_models import METHODS, SPARSE, assert_same_moves, data, dense, moves, trained

from kbatch import Recipe
from kbatch.models.compilation import CompileArguments
from kbatch.models.maker import ModelMaker
from kbatch.models.scopes import augmented
from kbatch.models.train_step import trained_by_method

OWN = {
    "sgd": lambda: keras.optimizers.SGD(0.1, 0.9, weight_decay=0.01, global_clipnorm=0.5),
    "adam": lambda: keras.optimizers.Adam(0.01, clipnorm=0.3),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, use_ema=True, ema_momentum=0.5),
}


def recipe_of(method, **fields):
    return Recipe(32, "sgd", 0.1, training=method, **fields)


@pytest.mark.parametrize("method", METHODS[:2])
@pytest.mark.parametrize("name", OWN)
def test_passes_equal_the_whole_batch_for_any_optimizer(method, name):
    x, y = data(64)
    whole, parts = (
        moves(
            lambda: method_models.compiled_with(OWN[name]())(),
            Recipe(32, "compiled", None, training=method, micro_batch_size=micro),
            x,
            y,
        )
        for micro in (None, 8)
    )
    # Adam divides by the root of the squared gradient, which magnifies rounding.
    assert_same_moves(whole, parts, 1e-6 if name == "sgd" else 1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("policy", "tolerance"), [("mixed_bfloat16", 0.01), ("mixed_float16", 1e-6)]
)
def test_passes_equal_the_whole_batch_in_half_precision(method, policy, tolerance):
    """Passes of the same examples round alike, so that only the method could differ."""
    x, y = (np.concatenate(8 * [part]) for part in data(8))
    whole, parts = (
        moves(dense, recipe_of(method, policy=policy, micro_batch_size=micro), x, y, SPARSE(True))
        for micro in (None, 8)
    )
    assert_same_moves(whole, parts, tolerance)


@pytest.mark.parametrize("method", METHODS[:2])
@pytest.mark.parametrize(
    ("policy", "tolerance"), [("mixed_bfloat16", 0.1), ("mixed_float16", 0.02)]
)
def test_half_precision_differs_by_its_rounding_only(method, policy, tolerance):
    x, y = data(64)
    whole, parts = (
        moves(dense, recipe_of(method, policy=policy, micro_batch_size=micro), x, y, SPARSE(True))
        for micro in (None, 8)
    )
    assert_same_moves(whole, parts, tolerance)
    single = moves(dense, recipe_of(method), x, y, SPARSE(True))
    assert_same_moves(single, whole, 2 * tolerance)


@pytest.mark.parametrize("method", METHODS[:2])
@pytest.mark.parametrize("kind", ["sample weights", "class weights", "smoothed"])
def test_weights_and_softened_labels_count_as_in_one_pass(method, kind):
    x, y = data(64)
    given = {"class_weight": {0: 0.2, 1: 1.0, 2: 5.0}} if kind == "class weights" else {}
    if kind == "sample weights":
        given = {"sample_weight": np.linspace(0, 3, 64)}
    softened = 0.2 if kind == "smoothed" else 0.0
    whole, parts = (
        moves(
            dense,
            recipe_of(method, micro_batch_size=micro, label_smoothing=softened),
            x,
            y,
            SPARSE(True),
            **given,
        )
        for micro in (None, 8)
    )
    assert_same_moves(whole, parts, 1e-5)
    without = moves(dense, recipe_of(method), x, y, SPARSE(True))
    assert np.linalg.norm(whole - without) > 1e-3 * np.linalg.norm(whole)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS[:2])
@pytest.mark.parametrize("micro", [None, 8])
def test_xla_and_recompute_change_nothing(method, micro):
    x, y = data(64)

    def build():
        # without dropout: XLA draws other numbers than TensorFlow
        blocks = [[layers.Dense(8), layers.BatchNormalization(), layers.ReLU()] for _ in range(2)]
        return dense(*(layer for block in blocks for layer in block))

    plain, jitted, recomputed = (
        moves(build, recipe_of(method, micro_batch_size=micro, **more), x, y, SPARSE(True))
        for more in ({}, {"jit_compile": True}, {"recompute": "minimal"})
    )
    assert_same_moves(plain, jitted, 1e-4)
    assert_same_moves(plain, recomputed, 1e-4)


def test_xla_recompute_passes_and_loss_scaling_together():
    x, y = data(64)
    fields = {"policy": "mixed_float16", "jit_compile": True, "recompute": "sqrt"}
    for method in METHODS[:2]:
        blocks = [layers.Dense(8, "relu") for _ in range(4)]
        model, history = trained(
            lambda blocks=blocks: dense(*blocks),
            recipe_of(method, micro_batch_size=8, **fields),
            x,
            y,
            SPARSE(True),
            epochs=2,
        )
        assert np.isfinite(np.concatenate([each.ravel() for each in model.get_weights()])).all()
        assert history["loss"][1] < history["loss"][0]


@pytest.mark.parametrize("method", METHODS[:2])
@pytest.mark.parametrize("micro", [None, 8])
def test_metrics_are_those_of_a_plain_fit_at_the_same_weights(method, micro):
    """A rate of next to nothing keeps the weights, so that every batch is measured at them."""
    x, y = data(64)
    weights = np.linspace(0, 2, 64)
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")]
    told = [
        trained(
            lambda: dense(layers.Dense(4, kernel_regularizer="l2")),
            Recipe(32, "sgd", 1e-12, training=each, micro_batch_size=passes),
            x,
            y,
            SPARSE(True),
            metrics,
            sample_weight=weights,
        )[1]
        for each, passes in (("plain", None), (method, micro))
    ]
    assert told[0].keys() == told[1].keys() == {"accuracy", "loss", "top"}
    for name, values in told[0].items():
        assert told[1][name] == pytest.approx(values, rel=1e-5)


@pytest.mark.parametrize("method", METHODS[:2])
def test_loss_scaling_skips_what_overflows_and_goes_on(method):
    x, y = data(64)
    x[3] *= 1e6  # beyond what float16 holds
    recipe = recipe_of(method, policy="mixed_float16", micro_batch_size=8)
    before = ModelMaker(dense, CompileArguments(SPARSE(True)), seed=3).make(recipe).get_weights()
    model, _ = trained(dense, recipe, x[:32], y[:32], SPARSE(True))
    for first, after in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(after, first)
    assert float(model.optimizer.dynamic_scale) < 2.0**15
    assert int(model.optimizer.iterations) == 0
    with trained_by_method(model, recipe):
        model.fit(x[32:], y[32:], batch_size=32, verbose=0)
    assert int(model.optimizer.iterations) == recipe.method.inner_steps
    assert np.isfinite(model.get_weights()[0]).all()
    assert not np.array_equal(model.get_weights()[0], before[0])


def test_a_batch_is_augmented_once_for_all_passes_over_it():
    """With other noise in the second pass, SAM with no radius would not be plain training."""
    x, y = data(32)
    moved = [
        moves(
            dense, recipe_of(each), x, y, SPARSE(True), augmentation=[layers.GaussianNoise(1.0, 5)]
        )
        for each in ("plain", "sam:1e-7")
    ]
    assert_same_moves(*moved, 1e-4)


class Counted(keras.Model):
    """A subclassed model with a dict for input, and a loss of its own."""

    def __init__(self):
        super().__init__()
        self.hidden, self.last = layers.Dense(4, "tanh"), layers.Dense(3)
        self.seen = keras.metrics.Sum(name="seen")

    def call(self, inputs):
        return self.last(self.hidden(inputs["a"]) + inputs["b"])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        self.seen.update_state(tf.shape(y_pred)[0])
        return super().compute_loss(x, y, y_pred, sample_weight)


@pytest.mark.parametrize("method", METHODS[:2])
def test_a_subclassed_model_with_a_loss_of_its_own(method):
    x, y = data(64)
    inputs = {"a": x, "b": x[:, :4]}
    weights = []
    for micro in (None, 8):
        recipe = recipe_of(method, micro_batch_size=micro)
        keras.utils.set_random_seed(0)
        model, history = trained(Counted, recipe, inputs, y, SPARSE(True), ["accuracy"])
        assert history["seen"] == [64]  # each example once, whatever the passes over it
        weights.append(np.concatenate([each.ravel() for each in model.get_weights()]))
    np.testing.assert_allclose(*weights, rtol=1e-4, atol=1e-5)


def test_frozen_layers_stay_and_are_not_perturbed():
    x, y = data()

    def build():
        model = dense(layers.BatchNormalization())
        model.layers[0].trainable = False
        return model

    before = ModelMaker(build, CompileArguments(SPARSE(True)), seed=3).make(Recipe()).get_weights()
    for method in METHODS:
        after = trained(build, recipe_of(method), x, y, SPARSE(True))[0].get_weights()
        np.testing.assert_array_equal(after[0], before[0])
        assert not np.array_equal(after[-1], before[-1])


def test_the_model_is_as_before_after_each_fit_and_each_error():
    x, y = data()
    recipe = recipe_of("sam:0.05")
    model = ModelMaker(dense, CompileArguments(SPARSE(True))).make(recipe)
    own = model.train_step
    noise = [layers.GaussianNoise(0.1)]

    def stop(batch, logs=None):
        raise InterruptedError

    for _ in range(2):
        with trained_by_method(model, recipe), augmented(model, noise):
            model.fit(x, y, batch_size=32, verbose=0)
            assert model.train_step != own
        assert "train_step" not in vars(model)
        with (
            pytest.raises(InterruptedError),
            trained_by_method(model, recipe),
            augmented(model, noise),
        ):
            model.fit(
                x,
                y,
                batch_size=32,
                verbose=0,
                callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=stop)],
            )
        assert "train_step" not in vars(model)
        assert "apply_gradients" not in vars(model.optimizer)
    model.fit(x, y, verbose=0)
    assert model.train_step == own


def test_plain_training_is_left_to_keras():
    model = ModelMaker(dense, CompileArguments(SPARSE(True))).make(Recipe())
    with trained_by_method(model, Recipe()):
        assert "train_step" not in vars(model)


def test_a_step_run_eagerly_is_the_same():
    x, y = data()

    def eager():
        model = dense()
        model.compile("sgd", SPARSE(True), run_eagerly=True)
        return model

    for method in METHODS[:2]:
        recipe = recipe_of(method, micro_batch_size=8)
        assert_same_moves(
            moves(dense, recipe, x, y, SPARSE(True)), moves(eager, recipe, x, y), 1e-5
        )
