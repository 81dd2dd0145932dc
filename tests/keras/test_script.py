"""The code of a recipe trains as `kbatch.train` does."""

import runpy
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import script_models
from script_cases import RECIPES

import kbatch
from kbatch import Recipe
from kbatch.data.streams import training_source
from kbatch.script import fit

EPOCHS = 4
LOSS, SPARSE = "binary_crossentropy", "sparse_categorical_crossentropy"
METRICS = {LOSS: "mean_squared_error", SPARSE: SPARSE}
FAST = ["passes", "growth steps", "all"]
OTHERS = [name for name in RECIPES if name not in FAST]


@pytest.fixture(scope="module")
def examples():
    """Few examples, of which no batch size of the recipes is a divisor."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 6)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    return (x[:60], y[:60]), (x[60:], y[60:])


def network():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, "tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )


class Last(keras.callbacks.Callback):
    """Keeps the weights after the last update."""

    def on_train_batch_end(self, batch, logs=None):
        self.weights = [weight.copy() for weight in self.model.get_weights()]


def by_kbatch(recipe, build, examples, loss=LOSS):
    """The weights after the last update, and the last measurement."""
    last = Last()
    (x, y), validation = examples
    _, outcome = kbatch.train(
        recipe,
        build,
        x,
        y,
        validation,
        epochs=EPOCHS,
        metric=f"val_{METRICS[loss or LOSS]}",
        direction="min",
        chance=1.0,
        **({"loss": loss, "metrics": [METRICS[loss]]} if loss else {}),
        callbacks=[last],
    )
    return last.weights, outcome.curve[-1][1]


def by_code(recipe, build, examples, loss=LOSS):
    """The same, by the code of the recipe."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train.py")
        file.write_text(recipe.to_code())
        train = runpy.run_path(str(file))["train"]
        last, fit = Last(), keras.Model.fit

        def watched(model, *arguments, callbacks, **named):
            return fit(model, *arguments, callbacks=[last, *callbacks], verbose=0, **named)

        (x, y), validation = examples
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keras.Model, "fit", watched)
            _, history = train(build, x, y, validation, EPOCHS, loss, [METRICS[loss]])
    return last.weights, history.history[f"val_{METRICS[loss]}"][-1]


def assert_equal(recipe, build, examples, loss=LOSS, rtol=1e-5):
    own = None if recipe.optimizer == "compiled" else loss
    weights, value = by_kbatch(recipe, build, examples, own)
    code_weights, code_value = by_code(recipe, build, examples, loss)
    for ours, theirs in zip(weights, code_weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-6)
    assert code_value == pytest.approx(value, rel=rtol)


@pytest.mark.parametrize("name", FAST)
def test_the_code_trains_as_kbatch_does(name, examples, own_policy):
    assert_equal(RECIPES[name], network, examples)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_the_code_of_other_recipes_does_so_too(name, examples, own_policy):
    assert_equal(RECIPES[name], network, examples)


def test_exact_passes_are_one_pass_in_the_code(examples):
    def plain():
        layers = [keras.layers.Dense(16, "tanh"), keras.layers.Dense(1, "sigmoid")]
        return keras.Sequential([keras.Input((6,)), *layers])

    recipe = Recipe(32, "adam", 0.02, micro_batch_size=8, accumulation="exact")
    assert_equal(recipe, plain, examples)


class Wrapped(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.3)

    def call(self, x):
        return self.dropout(x)


def test_layers_inside_of_others_are_changed_alike(examples):
    def nested():
        inner = keras.Input((16,))
        drawn = keras.layers.BatchNormalization(gamma_initializer="random_normal")
        block = keras.Model(inner, Wrapped()(drawn(inner)))
        x = block(keras.layers.Dense(16, "tanh")(inputs := keras.Input((6,))))
        return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(x))

    recipe = Recipe(24, "sgd", 0.05, dropout_scale=1.5, normalization="group")
    assert_equal(recipe, nested, examples)


@pytest.mark.parametrize("training", ["plain", pytest.param("sam:0.05", marks=pytest.mark.slow)])
def test_what_validation_draws_changes_no_weight(training, examples):
    """Keras' recurrent dropout draws in validation too; the code validates more often."""

    def recurrent():
        x = keras.layers.Reshape((6, 1))(inputs := keras.Input((6,)))
        x = keras.layers.LSTM(4, dropout=0.3, recurrent_dropout=0.3)(x)
        normal = keras.layers.SpectralNormalization(keras.layers.Dense(4, "tanh"))(x)
        return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(normal))

    assert_equal(Recipe(24, "sgd", 0.05, training=training), recurrent, examples)


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method")
@pytest.mark.parametrize(
    "mode", ["int8", *(pytest.param(each, marks=pytest.mark.slow) for each in ("int4", "float8"))]
)
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"micro_batch_size": 8},
        pytest.param({"recompute": "minimal"}, marks=pytest.mark.slow),
    ],
)
def test_layers_of_few_bits_train_as_in_keras(fields, mode, examples):
    def quantized():
        model = keras.Sequential([keras.Input((6,)), *map(keras.layers.Dense, (8, 8, 8))])
        model.add(keras.layers.Dense(1, "sigmoid"))
        model.quantize(mode)
        if mode != "float8":  # else nothing but biases trains
            for layer in model.layers:
                layer.enable_lora(2)
        return model

    assert_equal(Recipe(24, "sgd", 0.05, **fields), quantized, examples)


@pytest.fixture(scope="module")
def pictures():
    """Coloured squares of two classes."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 255, (40, 12, 12, 3)).astype("float32")
    y = np.arange(40).astype("int32") % 2
    x[y == 1, :, :, 0] /= 2
    return (x[:30], y[:30]), (x[30:], y[30:])


def convolutions():
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(2, "softmax"),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"augmentation": "flip_shift_contrast"},
        {"augmentation": "flip_shift_mixup", "micro_batch_size": 5},
        {"augmentation": "cutmix", "training": "sam:0.05"},
        {"augmentation": "flip_shift_cutmix"},
        {"label_smoothing": 0.1},
        {"label_smoothing": 0.1, "augmentation": "mixup", "policy": "mixed_float16"},
    ],
    ids=lambda fields: " ".join(map(str, fields.values())),
)
def test_pictures_are_augmented_as_kbatch_does(fields, pictures, own_policy):
    recipe = Recipe(10, "sgd", 0.05, **fields)
    assert_equal(recipe, convolutions, pictures, SPARSE, rtol=1e-4)


def compiled():
    model = network()
    rate = keras.optimizers.schedules.ExponentialDecay(0.02, 3, 0.5, staircase=True)
    model.compile(keras.optimizers.Adam(rate, weight_decay=0.01), LOSS, metrics=[METRICS[LOSS]])
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [{}, {"ema": 0.7}, {"policy": "mixed_float16", "label_smoothing": 0.1}],
    ids=lambda fields: " ".join(map(str, fields.values())) or "plain",
)
def test_a_compiled_optimizer_is_kept(fields, examples, own_policy):
    assert_equal(Recipe(24, "compiled", None, **fields), compiled, examples)


@pytest.mark.slow
def test_a_compiled_optimizer_takes_several_passes(examples, own_policy):
    def constant():
        model = network()
        model.compile(keras.optimizers.Adam(0.02), LOSS, metrics=[METRICS[LOSS]])
        return model

    recipe = Recipe(24, "compiled", None, micro_batch_size=8, policy="mixed_float16", ema=0.7)
    assert_equal(recipe, constant, examples)


def test_the_order_of_examples_is_that_of_a_search(examples):
    x = np.arange(10)
    for size in (1, 3, 4):
        ours = fit.batches(x, -x, size, seed=7).take(12).as_numpy_iterator()
        theirs = training_source(x, -x).stream(size, 7).take(12).as_numpy_iterator()
        for pair, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(pair, other)
            np.testing.assert_array_equal(pair[0], -pair[1])


def test_every_pass_holds_every_example_once():
    x = {"a": np.arange(12), "b": np.arange(12.0)}
    found = fit.growing_batches(x, np.arange(12), [2, 4, 6, 1, 5, 6], seed=0)
    sizes, order = [], []
    for inputs, labels in found.as_numpy_iterator():
        np.testing.assert_array_equal(inputs["a"], labels)
        sizes.append(len(labels))
        order += list(labels)
    assert sizes == [2, 4, 6, 1, 5, 6]
    assert sorted(order[:12]) == sorted(order[12:]) == list(range(12))
    assert order[:12] != order[12:]


def code_trains(recipe, build, *arguments, **more):
    """Train by the code of a recipe, as `train` of the code."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        file = Path(folder, "train.py")
        file.write_text(recipe.to_code())
        fit = keras.Model.fit
        patch.setattr(
            keras.Model, "fit", lambda self, *args, **named: fit(self, *args, verbose=0, **named)
        )
        return runpy.run_path(str(file))["train"](build, *arguments, **more)


def assert_model_equal(name):
    build, x, y, fields, more = script_models.CASES[name]
    metric = {script_models.several: "val_a_mae", script_models.sparse: "val_accuracy"}.get(
        build, "val_mae"
    )
    recipe, ours, theirs = Recipe(**fields), Last(), Last()
    _, outcome = kbatch.train(
        recipe,
        build,
        x,
        y,
        (x, y),
        epochs=3,
        metric=metric,
        direction="max" if build is script_models.sparse else "min",
        chance=0.0 if build is script_models.sparse else 10.0,
        callbacks=[ours],
        **more,
    )
    _, history = code_trains(recipe, build, x, y, (x, y), 3, callbacks=[theirs], **more)
    for own, other in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)
    assert history.history[metric][-1] == pytest.approx(outcome.curve[-1][1], rel=1e-4)
    assert build().evaluate(x, y, verbose=0, return_dict=True).keys() <= history.history.keys()


FAST_MODELS = ["logits", "several", "masks"]


@pytest.mark.parametrize("name", FAST_MODELS)
def test_the_models_own_loss_and_metrics_are_kept(name, own_policy):
    assert_model_equal(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in script_models.CASES if name not in FAST_MODELS])
def test_those_of_other_models_are_kept_too(name, own_policy):
    assert_model_equal(name)


def test_a_loss_beside_a_compiled_one_does_not_override_it():
    build, x, y, fields, _ = script_models.CASES["logits"]
    ends = [
        code_trains(Recipe(**fields), build, x, y, (x, y), 2, *given)[0].get_weights()
        for given in ((), ("mse", ["accuracy"]))
    ]
    for own, other in zip(*ends, strict=True):
        np.testing.assert_array_equal(own, other)


def dice(y_true, y_pred):
    """One number for all examples of a batch."""
    y_pred = keras.ops.sigmoid(y_pred)
    both = keras.ops.sum(y_true * y_pred)
    return 1 - 2 * both / (keras.ops.sum(y_true) + keras.ops.sum(y_pred))


class OwnLoss(keras.Model):
    """A model without a compiled loss, which computes its own."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        error = keras.ops.square(keras.ops.cast(y, y_pred.dtype)[:, None] - y_pred)
        return keras.ops.mean(error)


def own_loss():
    inputs, x = script_models.hidden()
    model = OwnLoss(inputs, keras.layers.Dense(1)(x))
    model.compile("sgd")
    return model


@pytest.mark.parametrize("loss", ["dice", "sum", "own compute_loss"])
def test_passes_are_written_where_the_loss_is_their_mean(loss):
    _, x, _, _, _ = script_models.CASES["logits"]
    y = (x[:, 0] > 0.5).astype("float32")
    recipe = Recipe(**script_models.PASSES)
    if loss == "own compute_loss":
        model, _ = code_trains(recipe, own_loss, x, y, (x, y), 1)
        assert model.optimizer.gradient_accumulation_steps > 1
        return
    fails = dice if loss == "dice" else keras.losses.MeanSquaredError(reduction="sum")
    with pytest.raises(NotImplementedError, match="must be the mean of its passes"):
        code_trains(recipe, script_models.single(fails), x, y[:, None], (x, y[:, None]), 1)


def test_what_cannot_be_written_stops_with_a_sentence():
    _, x, y, fields, _ = script_models.CASES["logits"]
    recipe, made = Recipe(**fields), script_models.from_logits()
    with pytest.raises(ValueError, match="Pass loss= and metrics="):
        code_trains(recipe, network, x, y, (x, y), 1)
    with pytest.raises(ValueError, match="compiled inside of build_model"):
        code_trains(recipe, lambda: made, x, y, (x, y), 1)
    ignoring = script_models.single(
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0), 3
    )
    labels = script_models.CLASS
    with pytest.raises(NotImplementedError, match="must be the mean of its passes"):
        code_trains(Recipe(**script_models.PASSES), ignoring, x, labels, (x, labels), 1)
    kbatch.register_augmentation("test_of_mine", lambda: [keras.layers.GaussianNoise(0.1)])
    with pytest.raises(NotImplementedError, match="Write the layers"):
        code_trains(
            Recipe(12, augmentation="test_of_mine"), script_models.from_logits, x, y, (x, y), 1
        )
