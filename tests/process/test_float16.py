"""Training whose weights, activations and gradients are all of float16."""

import keras
import memory_models
import numpy as np
import pytest

import kbatch
from kbatch import Recipe
from kbatch.errors import ModelError
from kbatch.models import policies
from kbatch.models.compilation import CompileArguments
from kbatch.models.maker import ModelMaker
from kbatch.models.optimizers import optimizer_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(128, 6)).astype("float32")
Y = np.argmax(X[:, :3], axis=1)
ARGUMENTS = CompileArguments("sparse_categorical_crossentropy", ["accuracy"])


def build():
    layers = [
        keras.layers.Dense(16, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(3, "softmax"),
    ]
    return keras.Sequential([keras.Input((6,)), *layers])


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"micro_batch_size": 8},
        {"jit_compile": True},
        {"recompute": "minimal"},
        {"ema": 0.9, "clip_norm": 1.0, "weight_decay": 1e-4},
    ],
    ids=str,
)
def test_sgd_learns_in_float16(more):
    recipe = Recipe(32, "sgd", 0.1, policy="float16", **more)
    model, outcome = kbatch.train(
        recipe, build, X, Y, (X, Y), epochs=25, loss=ARGUMENTS.loss, metrics=ARGUMENTS.metrics
    )
    assert {variable.dtype for variable in model.trainable_variables} == {"float16"}
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert outcome.value > 0.8
    assert keras.config.dtype_policy().name == "float32"


def test_the_loss_is_scaled_once():
    recipe = Recipe(32, "compiled", None, policy="float16")

    def compiled():
        model = build()
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
        return model

    optimizer = ModelMaker(compiled).make(recipe).optimizer
    assert isinstance(optimizer.inner_optimizer, keras.optimizers.SGD)
    plain = keras.optimizers.SGD(0.1)
    assert policies.loss_scaled(plain, Recipe(policy="mixed_float16")) is plain


def moved(optimizer, dtype, gradient):
    """How far three equal gradients move a weight."""
    weight = keras.Variable(np.full((4, 4), 0.5), dtype=dtype)
    for _ in range(3):
        optimizer.apply([keras.ops.full((4, 4), gradient, dtype)], [weight])
    return 0.5 - float(keras.ops.cast(weight, "float32")[0, 0])


def test_accumulated_passes_equal_the_whole_batch_in_float16():
    """To the precision of float16, also with a loss whose passes are weighed by their counts."""

    def plain():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])

    for ignored in (None, 0):
        loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=ignored)
        weights = []
        for micro in (None, 32):
            recipe = Recipe(128, "sgd", 0.1, policy="float16", micro_batch_size=micro)
            model, _ = kbatch.train(
                recipe, plain, X, Y, (X, Y), epochs=5, loss=loss, metrics=["accuracy"]
            )
            weights.append(np.concatenate([each.ravel() for each in model.get_weights()]))
        np.testing.assert_allclose(*weights, rtol=1e-2, atol=4e-3)
        assert np.abs(weights[0]).max() > 0.1


def head_of(dtype, optimizer=None):
    """A model with one output, whose last layer computes in this type."""

    def build():
        layers = [keras.layers.Dense(4), keras.layers.Dense(1, dtype=dtype)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        if optimizer is not None:
            model.compile(optimizer(), "mse", metrics=["mae"], jit_compile=False)
        return model

    return build


def trained(dtype, labels, epochs, own=None, **fields):
    """A model trained in passes of 32, or the whole of the examples at once, and its outcome."""
    recipe = Recipe(128, policy="float16", **fields)
    named = {} if own else {"loss": "mse", "metrics": ["mae"]}
    data = (X / 10, labels, (X / 10, labels))
    build = head_of(dtype, own)
    return kbatch.train(recipe, build, *data, epochs=epochs, metric="val_mae", **named)


SMALL = X[:, 0] / 10  # labels for which no pass overflows


def assert_passes_equal_the_whole_batch(dtype, own=None, **fields):
    weights = []
    for micro in (None, 32):
        model, _ = trained(dtype, SMALL, 5, own, micro_batch_size=micro, **fields)
        weights.append(np.concatenate([each.ravel() for each in model.get_weights()]))
    np.testing.assert_allclose(*weights, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", None])
@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.1), ("lars", 1.0)])
def test_clipped_passes_equal_the_whole_batch(dtype, optimizer, rate):
    fields = {"optimizer": optimizer, "learning_rate": rate, "clip_norm": 0.05}
    assert_passes_equal_the_whole_batch(dtype, **fields)


def test_gradients_are_clipped_whose_squares_overflow():
    fields = {"optimizer": "sgd", "learning_rate": 1e-3, "clip_norm": 1.0, "micro_batch_size": 32}
    _, outcome = trained(None, 3000 * X[:, 0], 40, **fields)
    assert outcome.ended == "horizon"
    assert outcome.updates > outcome.skipped_updates


@pytest.mark.parametrize("clipping", ["global_clipnorm", "clipnorm", "clipvalue"])
def test_a_compiled_optimizer_clips_its_passes(clipping):
    def sgd():
        return keras.optimizers.SGD(0.1, **{clipping: 0.01})

    fields = {"optimizer": "compiled", "learning_rate": None}
    assert_passes_equal_the_whole_batch("float32", sgd, **fields)


def test_the_noise_scale_of_a_clipped_float16_training_is_known():
    recipe = Recipe(64, "sgd", 0.01, policy="float16", clip_norm=1.0, micro_batch_size=16)
    found = kbatch.noise_scale(head_of("float32"), X, X[:, 0], recipe, loss="mse", updates=40)
    assert found.critical_batch > 0


@pytest.mark.parametrize("kind", [keras.optimizers.Adam, keras.optimizers.AdamW])
def test_why_adam_is_refused(kind):
    """Three steps at a rate of 1e-3 are 0.003, and in float16 anything."""
    for gradient in (1e-3, 1e-4):
        assert moved(kind(1e-3), "float32", gradient) == pytest.approx(0.003, rel=0.05)
    assert moved(kind(1e-3), "float16", 1e-3) > 1
    assert moved(kind(1e-3), "float16", 1e-4) == 0


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
@pytest.mark.parametrize("gradient", [1e-3, 1e-4])
def test_sgd_and_lars_move_in_float16_as_in_float32(optimizer, gradient):
    ways = [
        moved(optimizer_of(Recipe(optimizer=optimizer, learning_rate=10.0)), dtype, gradient)
        for dtype in ("float32", "float16")
    ]
    assert ways[1] == pytest.approx(ways[0], rel=0.05)
    assert ways[0] > 1e-3


@pytest.mark.parametrize("kind", [keras.optimizers.Adam, keras.optimizers.Lamb])
def test_a_compiled_optimizer_that_cannot_is_refused_by_name(kind):
    def compiled():
        model = build()
        model.compile(kind(1e-3), "mse")
        return model

    with pytest.raises(ModelError, match=f"SGD or Lion.*{kind.__name__}"):
        ModelMaker(compiled).make(Recipe(32, "compiled", None, policy="float16"))
    ModelMaker(compiled).make(Recipe(32, "sgd", 0.1, policy="float16"))


@pytest.mark.parametrize("name", ["kernel_regularizer", "activity_regularizer"])
def test_regularizers_are_refused_by_the_name_of_their_layer(name):
    def regularized():
        layer = keras.layers.Dense(3, "softmax", name="strict", **{name: "l2"})
        return keras.Sequential([keras.Input((6,)), layer])

    with pytest.raises(ModelError, match="no regularizer.*strict"):
        ModelMaker(regularized, ARGUMENTS).make(Recipe(32, "sgd", 0.1, policy="float16"))
    ModelMaker(regularized, ARGUMENTS).make(Recipe(32, "sgd", 0.1))


def test_an_operation_without_a_kernel_is_refused_by_name():
    def volumes():
        layers = [keras.layers.MaxPooling3D(name="pool"), keras.layers.Flatten()]
        head = keras.layers.Dense(3, "softmax")
        return keras.Sequential([keras.Input((4, 4, 4, 1)), *layers, head])

    x = np.zeros((16, 4, 4, 4, 1), "float32")
    y = np.arange(16) % 3
    with pytest.raises(ModelError, match="must be able to compute.*MaxPool3D of MaxPooling3D"):
        kbatch.train(
            Recipe(16, "sgd", 0.1, policy="float16"),
            *(volumes, x, y, (x, y)),
            epochs=1,
            loss=ARGUMENTS.loss,
            metrics=ARGUMENTS.metrics,
        )
    assert keras.config.dtype_policy().name == "float32"


def test_other_errors_stay_as_they_are():
    with pytest.raises(ZeroDivisionError), policies.explained("float16"):
        1 / 0  # noqa: B018


def test_the_largest_batch_of_float16_is_found(own_cache, forked_workers):
    found = kbatch.find_max_batch(
        memory_models.normed,
        (24, 24, 3),
        recipe=Recipe(32, "sgd", 0.1, policy="float16"),
        memory_limit="300MB",
        ceiling=8,
        confirmed_steps=2,
    )
    assert found.batch_size == 8
