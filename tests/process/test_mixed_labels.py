"""Training on mixed examples, against a NumPy oracle and against Keras with one-hot labels."""

import keras
import keras_tuner
import memory_models
import numpy as np
import pytest
import short_searches
import tensorflow as tf

import kbatch
from kbatch import Recipe, Space
from kbatch import space as spaces
from kbatch.data import augmentation
from kbatch.data.augmentation import CutMix, MixUp
from kbatch.errors import DataError, ModelError
from kbatch.models import losses
from kbatch.models.compilation import CompileArguments, compile_for
from kbatch.models.scopes import augmented
from kbatch.training.pace import RunOptions
from kbatch.training.run import recipe_scope

RNG = np.random.default_rng(0)
CLASSES = 3
X = RNG.normal(size=(16, 4)).astype("float32")
Y = RNG.integers(0, CLASSES, 16)
WEIGHTS = RNG.uniform(0.5, 2, 16).astype("float32")
SHARES = RNG.random(16).astype("float32")


class Fixed(MixUp):
    """MixUp whose shares are known."""

    def __init__(self, shares=SHARES):
        super().__init__()
        self.shares = shares

    def mix(self, x):
        with pytest.MonkeyPatch.context() as patch:
            shares = tf.convert_to_tensor(self.shares)
            patch.setattr(augmentation, "drawn_shares", lambda like, seed: shares)
            return super().mix(x)


def linear(loss="sparse_categorical_crossentropy", **arguments):
    start = np.linspace(-1, 1, 4 * CLASSES).reshape(4, CLASSES)
    layer = keras.layers.Dense(
        CLASSES, "softmax", kernel_initializer=keras.initializers.Constant(start), **arguments
    )
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


def oracle(x, y, shares, weights, decay=0.0):
    """Loss at the start, and kernel and bias after one update, in float64 and by hand."""
    kernel = np.linspace(-1, 1, 4 * CLASSES).reshape(4, CLASSES)
    share = shares[:, None].astype("float64")
    mixed = share * x + (1 - share) * np.roll(x, 1, axis=0)
    target = np.eye(CLASSES)[y] * weights[:, None]
    target = share * target + (1 - share) * np.roll(target, 1, axis=0)
    scores = np.exp(mixed @ kernel)
    likely = scores / scores.sum(axis=1, keepdims=True)
    loss = -(target * np.log(likely)).sum(axis=1).mean() + decay * (kernel**2).sum()
    slope = (target.sum(axis=1, keepdims=True) * likely - target) / len(x)
    updated = kernel - 0.1 * (mixed.T @ slope + 2 * decay * kernel)
    return loss, updated, -0.1 * slope.sum(axis=0)


def test_an_update_equals_the_oracle():
    model = linear(kernel_regularizer=keras.regularizers.L2(0.01))
    with augmented(model, [Fixed()]):
        loss, _ = model.train_on_batch(X, Y, WEIGHTS)
    expected, kernel, bias = oracle(X, Y, SHARES, WEIGHTS, decay=0.01)
    assert loss == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(model.get_weights()[0], kernel, atol=1e-6)
    np.testing.assert_allclose(model.get_weights()[1], bias, atol=1e-6)


def test_class_weights_follow_the_label_that_they_belong_to():
    model, of_class = linear(), {0: 0.5, 1: 3.0, 2: 1.0}
    data = tf.data.Dataset.from_tensors((X, Y))
    with augmented(model, [Fixed()]):
        model.fit(data, class_weight=of_class, verbose=0)
    _, kernel, bias = oracle(X, Y, SHARES, np.array([of_class[y] for y in Y]))
    np.testing.assert_allclose(model.get_weights()[0], kernel, atol=1e-6)
    np.testing.assert_allclose(model.get_weights()[1], bias, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_sparse_labels_equal_mixed_one_hot_ones(smoothing, jit_compile):
    own, keras_own = linear(), linear("categorical_crossentropy")
    recipe = Recipe(16, "sgd", 0.1, label_smoothing=smoothing, jit_compile=jit_compile)
    for model in (own, keras_own):
        compile_for(model, recipe, CompileArguments())
    with augmented(own, [Fixed()]):
        own.train_on_batch(X, Y)
    share, one_hot = SHARES[:, None], np.eye(CLASSES, dtype="float32")[Y]
    keras_own.train_on_batch(
        *(share * part + (1 - share) * np.roll(part, 1, axis=0) for part in (X, one_hot))
    )
    for ours, theirs in zip(own.get_weights(), keras_own.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        ("binary_crossentropy", RNG.integers(0, 2, (16, CLASSES)).astype("float32")),
        ("categorical_crossentropy", np.eye(CLASSES, dtype="float32")[Y]),
        ("categorical_focal_crossentropy", np.eye(CLASSES, dtype="float32")[Y]),
    ],
)
def test_losses_that_take_mixed_labels_give_the_same(loss, labels):
    models = linear(loss), linear(loss)
    with augmented(models[0], [Fixed()]):
        models[0].train_on_batch(X, labels)
    share = SHARES[:, None]
    models[1].train_on_batch(
        *(share * part + (1 - share) * np.roll(part, 1, axis=0) for part in (X, labels))
    )
    for ours, theirs in zip(models[0].get_weights(), models[1].get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_accumulated_passes_mix_within_themselves():
    recipe, model = Recipe(16, "sgd", 0.1, micro_batch_size=8), linear()
    compile_for(model, recipe, CompileArguments())
    model.optimizer.momentum = 0.0
    with augmented(model, [Fixed(SHARES[:8])]):
        for half in (slice(0, 8), slice(8, 16)):
            model.train_on_batch(X[half], Y[half])
    halves = [
        oracle(X[half], Y[half], SHARES[:8], np.ones(8)) for half in (slice(0, 8), slice(8, 16))
    ]
    np.testing.assert_allclose(
        model.get_weights()[0], np.mean([kernel for _, kernel, _ in halves], axis=0), atol=1e-6
    )


def test_an_inner_step_can_slice_the_mixed_batch():
    model, plain = linear(), linear()
    own_step = model.train_step
    model.train_step = lambda data: [
        own_step(keras.tree.map_structure(lambda part, at=at: part[at : at + 8], data))
        for at in (0, 8)
    ][-1]
    with augmented(model, [Fixed()]):
        model.train_on_batch(X, Y, WEIGHTS)
    share = SHARES[:, None]
    x = share * X + (1 - share) * np.roll(X, 1, axis=0)
    labels = np.eye(CLASSES)[Y] * WEIGHTS[:, None]
    y = (share * labels + (1 - share) * np.roll(labels, 1, axis=0)).astype("float32")
    totals = y.sum(axis=1, keepdims=True)
    plain.compile(keras.optimizers.SGD(0.1), "categorical_crossentropy")
    for at in (0, 8):
        half = slice(at, at + 8)
        plain.train_on_batch(x[half], y[half] / totals[half], totals[half, 0])
    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def two_heads():
    inputs = keras.Input((4,))
    outputs = {
        "a": keras.layers.Dense(CLASSES, "softmax", name="a")(inputs),
        "b": keras.layers.Dense(1, "sigmoid", name="b")(inputs),
    }
    model = keras.Model(inputs, outputs)
    losses = {"a": "sparse_categorical_crossentropy", "b": "binary_crossentropy"}
    model.compile(keras.optimizers.SGD(0.1), losses, loss_weights={"a": 1.0, "b": 0.5})
    return model


def test_several_outputs_log_the_loss_of_each():
    model = two_heads()
    y = {"a": Y, "b": (Y > 0).astype("float32")[:, None]}
    weights = {"a": WEIGHTS, "b": WEIGHTS[::-1]}
    share = SHARES[:, None]
    x = share * X + (1 - share) * np.roll(X, 1, axis=0)
    predicted = model.predict(x, verbose=0)
    expected = {}
    for name, likely in (
        ("a", predicted["a"]),
        ("b", np.concatenate([1 - predicted["b"], predicted["b"]], axis=1)),
    ):
        target = np.eye(likely.shape[1])[y[name].ravel().astype(int)] * weights[name][:, None]
        target = share * target + (1 - share) * np.roll(target, 1, axis=0)
        expected[name] = -(target * np.log(likely)).sum(axis=1).mean()
    with augmented(model, [Fixed()]):
        logs = model.train_on_batch(X, y, weights, return_dict=True)
    assert logs["a_loss"] == pytest.approx(expected["a"], rel=1e-5)
    assert logs["b_loss"] == pytest.approx(expected["b"], rel=1e-5)
    assert logs["loss"] == pytest.approx(expected["a"] + 0.5 * expected["b"], rel=1e-5)


def test_metrics_are_of_the_label_with_the_larger_share():
    """A model that knows the labels is right about every one of them."""
    x = np.eye(CLASSES, dtype="float32")[Y]
    layer = keras.layers.Dense(
        CLASSES, "softmax", kernel_initializer=keras.initializers.Identity(gain=50.0)
    )
    model = keras.Sequential([keras.Input((CLASSES,)), layer])
    model.compile(
        keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    with augmented(model, [Fixed()]):
        _, accuracy = model.train_on_batch(x, Y)
    assert accuracy == 1.0
    assert 0 < np.mean(SHARES < 0.5) < 1


def test_validation_inside_the_scope_is_that_outside():
    model = linear()
    outside = model.evaluate(X, Y, verbose=0)
    with augmented(model, [Fixed()]):
        assert model.evaluate(X, Y, verbose=0) == outside


def test_a_model_is_as_before_after_an_error():
    model = linear()
    before = dict(vars(model))
    with pytest.raises(RuntimeError, match="in the middle"), augmented(model, [MixUp()]):
        model.train_on_batch(X, Y)
        raise RuntimeError("in the middle")
    assert not {"train_step", "compute_loss", "compute_metrics"} & set(vars(model))
    assert "train_step" not in before
    loss, _ = model.train_on_batch(X, Y)
    assert np.isfinite(loss)


def test_scopes_around_one_another_restore_in_their_order():
    model = linear()
    with augmented(model, [keras.layers.GaussianNoise(0.1)]):
        outer = model.train_step
        with augmented(model, [MixUp()]):
            assert model.train_step is not outer
        assert model.train_step is outer
    assert "train_step" not in vars(model)


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(CLASSES, "softmax")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.parametrize(
    ("loss", "received"),
    [
        ("mse", "mse"),
        ("kl_divergence", "kl_divergence"),
        ("binary_focal_crossentropy", "binary_focal_crossentropy"),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=0), "ignore_class"),
        (
            keras.losses.CategoricalCrossentropy(reduction="mean_with_sample_weight"),
            "mean_with_sample_weight",
        ),
        (lambda y, predicted: 0.0, "<lambda>"),
    ],
)
def test_other_losses_are_refused_by_name(loss, received):
    with pytest.raises(ModelError, match=received):
        losses.check_mixed_labels(linear(loss), loss)


def test_models_that_cannot_take_two_labels_are_refused_by_name():
    with pytest.raises(ModelError, match="Keras' own train_step.*OwnStep.train_step"):
        losses.check_mixed_labels(OwnStep(), "binary_crossentropy")
    pixels = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Dense(2, "softmax")])
    with pytest.raises(ModelError, match="one label per example.*4, 4, 2"):
        losses.check_mixed_labels(pixels, "sparse_categorical_crossentropy")


def test_outputs_that_only_data_tell_are_refused_in_training():
    class Pixels(keras.Model):
        def call(self, x):
            return keras.ops.sigmoid(x)

    model = Pixels()
    model.compile("sgd", "binary_crossentropy")
    x = np.zeros((4, 3, 3, 1), "float32")
    with augmented(model, [MixUp()]), pytest.raises(ModelError, match="one label per example"):
        model.fit(x, x, verbose=0)


def images(hp=None):
    inputs = keras.Input((12, 12, 1))
    x = keras.layers.Rescaling(1 / 255)(inputs)
    x = keras.layers.Conv2D(4, 3, activation="relu")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    outputs = keras.layers.Dense(2, "softmax", dtype="float32")(x)
    model = keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def photographs():
    x = RNG.integers(0, 255, (64, 12, 12, 1)).astype("uint8")
    return x, (x.mean(axis=(1, 2, 3)) > 127).astype("int32")


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(16, augmentation="mixup", policy="mixed_float16", micro_batch_size=8),
        Recipe(16, augmentation="flip_shift_cutmix", jit_compile=True, recompute="minimal"),
        Recipe(16, augmentation="flip_shift_mixup", label_smoothing=0.1, policy="mixed_bfloat16"),
    ],
    ids=str,
)
def test_training_composes_with(recipe):
    x, y = photographs()
    model, outcome = kbatch.train(recipe, images, x, y, (x, y), epochs=3)
    assert outcome.ended == "horizon"
    assert all(np.isfinite(part).all() for part in model.get_weights())
    assert not {"train_step", "compute_metrics"} & set(vars(model))


def test_mixing_changes_the_weights_that_training_ends_with():
    x, y = photographs()
    ends = []
    for name in ("none", "mixup", "cutmix"):
        model = images()
        recipe = Recipe(16, augmentation=name)
        compile_for(model, recipe, CompileArguments())
        for layer in model.layers:
            for variable in layer.weights:
                variable.assign(keras.ops.ones_like(variable) * 0.5)
        with recipe_scope(model, recipe, RunOptions(0, "float32")):
            model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
        ends.append(np.concatenate([part.ravel() for part in model.get_weights()]))
    assert np.abs(ends[0] - ends[1]).max() > 1e-4
    assert np.abs(ends[0] - ends[2]).max() > 1e-4


@pytest.mark.slow
def test_a_search_over_augmentations_with_accumulation(tmp_path):
    space = Space(
        augmentation=("none", "mixup", "cutmix"),
        batch_size=32,
        micro_batch_size=16,
        recompute="minimal",
        policy="float32",
        jit_compile=False,
        optimizer="sgd",
        learning_rate={"sgd": 0.01},
    )
    tuner = short_searches.tuner_of(
        str(tmp_path), keras_tuner.GridSearch, images, space, max_trials=3
    )
    short_searches.search(tuner, (photographs(), photographs()))
    trials = kbatch.results.load(str(tmp_path / "p"))
    assert set(trials["ended"]) == {"horizon"}
    assert set(trials["augmentation"]) == {"none", "mixup", "cutmix"}


def test_a_search_that_cannot_mix_ends_at_once(tmp_path):
    def refused(build, data, augmentation, error, words):
        space = Space(
            augmentation=("none", augmentation),
            policy="float32",
            batch_size=16,
            baseline=Recipe(16),
        )
        tuner = short_searches.tuner_of(
            str(tmp_path / augmentation),
            model=build,
            space=space,
            metric="val_loss",
            direction="min",
            chance=1.0,
        )
        with pytest.raises(error, match=words):
            short_searches.search(tuner, (data, data))

    rows = X, Y.astype("float32")
    refused(lambda hp: linear(), (X, Y), "cutmix", DataError, "CutMix must have images")
    refused(lambda hp: linear("mse"), rows, "mixup", ModelError, "a loss over classes")


@pytest.mark.parametrize(
    "fields", [{"micro_batch_size": 1}, {"batch_schedule": "linear:16"}, {"batch_size": 1}]
)
def test_passes_of_one_example_mix_nothing_and_are_refused(fields, tmp_path):
    recipe = Recipe(**{"batch_size": 16, "augmentation": "mixup", **fields})
    with pytest.raises(DataError, match="MixUp must have two examples"):
        kbatch.train(recipe, linear, X, Y, (X, Y), epochs=1)
    axes = {"batch_size": 16, "jit_compile": False, "policy": "float32", **fields}
    if "micro_batch_size" in axes:
        # SAM mixes the whole batch
        sam = Space(**axes, training="sam:0.05")
        assert spaces.smallest_step(sam, [16]) == 16
    space = Space(**axes, augmentation=("none", "mixup"), baseline=Recipe(16))
    tuner = short_searches.tuner_of(str(tmp_path), model=lambda hp: linear(), space=space)
    with pytest.raises(DataError, match="MixUp must have two examples"):
        short_searches.search(tuner, ((X, Y), (X, Y)))


@pytest.mark.slow
def test_the_largest_batch_is_found_with_it(own_cache, forked_workers):
    found = kbatch.find_max_batch(
        memory_models.normed,
        (24, 24, 3),
        recipe=Recipe(augmentation="flip_shift_cutmix"),
        memory_limit="300MB",
        ceiling=8,
        confirmed_steps=2,
    )
    assert found.batch_size == 8


def test_pipelines_of_users_may_mix():
    kbatch.register_augmentation(
        "test_noise_cutmix", lambda: [keras.layers.GaussianNoise(1.0), kbatch.CutMix()]
    )
    x, y = photographs()
    recipe = Recipe(16, augmentation="test_noise_cutmix")
    _, outcome = kbatch.train(recipe, images, x.astype("float32"), y, (x, y), epochs=1)
    assert outcome.ended == "horizon"
    assert isinstance(kbatch.CutMix(), CutMix)
