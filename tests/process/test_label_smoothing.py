"""Label smoothing against Keras' own, where Keras has it."""

import forked
import keras
import keras_tuner
import memory_models
import numpy as np
import pytest

import kbatch
from kbatch import Recipe, Space
from kbatch.errors import ModelError, RecipeError, SearchError
from kbatch.models.losses import check_smoothing, smoothed

RNG = np.random.default_rng(0)
CLASSES = 5


def scores(shape, logits):
    z = RNG.normal(size=(*shape, CLASSES)).astype("float32")
    return z if logits else np.asarray(keras.ops.softmax(z))


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("shape", [(7,), (2, 3, 4)], ids=["one label", "a label per pixel"])
def test_labels_are_smoothed_as_keras_smooths_one_hot_ones(shape, logits):
    y, predicted = RNG.integers(0, CLASSES, shape), scores(shape, logits)
    weights = RNG.random(shape).astype("float32")
    ours = smoothed(keras.losses.SparseCategoricalCrossentropy(from_logits=logits), 0.1)
    keras_own = keras.losses.CategoricalCrossentropy(from_logits=logits, label_smoothing=0.1)
    one_hot = keras.ops.one_hot(y, CLASSES)
    np.testing.assert_allclose(
        ours(y, predicted, weights), keras_own(one_hot, predicted, weights), rtol=1e-5
    )
    plain = keras.losses.SparseCategoricalCrossentropy(from_logits=logits)
    assert abs(float(ours(y, predicted)) - float(plain(y, predicted))) > 1e-3


@pytest.mark.parametrize(
    "given",
    ["binary_crossentropy", keras.losses.binary_crossentropy, keras.losses.BinaryCrossentropy()],
)
def test_names_functions_and_losses_of_keras_own_are_taken(given):
    y, predicted = RNG.integers(0, 2, (6, 1)), RNG.random((6, 1)).astype("float32")
    keras_own = keras.losses.BinaryCrossentropy(label_smoothing=0.2)
    np.testing.assert_allclose(
        smoothed(given, 0.2)(y, predicted), keras_own(y, predicted), rtol=1e-6
    )


def test_what_a_loss_is_made_with_is_kept():
    loss = keras.losses.CategoricalFocalCrossentropy(
        alpha=0.5, gamma=3.0, from_logits=True, name="own"
    )
    assert smoothed(loss, 0.1).get_config() == {**loss.get_config(), "label_smoothing": 0.1}
    assert smoothed(loss, 0.0) is loss


def test_each_of_several_losses_is_softened():
    made = smoothed({"a": "binary_crossentropy", "b": "sparse_categorical_crossentropy"}, 0.1)
    assert made["a"].get_config()["label_smoothing"] == 0.1
    assert isinstance(made["b"], keras.losses.SparseCategoricalCrossentropy)


@pytest.mark.parametrize(
    ("loss", "received"),
    [
        ("mse", "Received: mse"),
        (
            keras.losses.SparseCategoricalCrossentropy(ignore_class=0),
            "sparse_categorical_crossentropy",
        ),
        (lambda y, predicted: 0.0, "Received: <lambda>"),
        (keras.losses.BinaryCrossentropy(label_smoothing=0.3), "Labels must be softened once"),
    ],
)
def test_other_losses_are_refused(loss, received):
    with pytest.raises(ModelError, match=received):
        check_smoothing(loss, 0.1)


@pytest.mark.parametrize("amount", [-0.1, 1.0, "0.1", True, float("nan")])
def test_other_amounts_are_refused(amount):
    with pytest.raises(RecipeError, match="label_smoothing"):
        Recipe(label_smoothing=amount)


def test_a_loss_that_smoothing_changes_is_not_scored():
    with pytest.raises(SearchError, match="must mean the same in every trial"):
        kbatch.HyperModel(
            build,
            Space(label_smoothing=(0, 0.1)),
            metric="val_loss",
            direction="min",
            chance=1.0,
            seconds_per_trial=1,
        )


def regression(hp=None):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_a_loss_that_cannot_be_smoothed_ends_a_search_at_once(tmp_path):
    space = Space(policy="float32", batch_size=16, label_smoothing=(0, 0.1))
    hypermodel = kbatch.HyperModel(
        regression, space, metric="val_mae", direction="min", chance=1.0, seconds_per_trial=1
    )
    tuner = keras_tuner.RandomSearch(
        hypermodel, objective=kbatch.objective(), max_trials=1, directory=str(tmp_path)
    )
    x, y = RNG.random((32, 4)), RNG.random(32)
    with pytest.raises(ModelError, match="needs a loss over classes"):
        tuner.search(x, y, validation_data=(x, y), verbose=0)
    assert not list(tmp_path.rglob("records.jsonl"))


def test_accumulated_passes_equal_the_whole_batch_with_it():
    x, y = RNG.normal(size=(64, 4)).astype("float32"), RNG.integers(0, 3, 64)
    weights = []
    for micro in (None, 16):
        recipe = Recipe(64, "sgd", 0.1, micro_batch_size=micro, label_smoothing=0.2)
        model, _ = kbatch.train(recipe, build, x, y, (x, y), epochs=5)
        weights.append(model.get_weights())
    for whole, accumulated in zip(*weights, strict=True):
        np.testing.assert_allclose(whole, accumulated, rtol=1e-5, atol=1e-6)


def test_the_largest_batch_is_found_with_it(own_cache, forked_workers):
    found = kbatch.find_max_batch(
        memory_models.normed,
        (24, 24, 3),
        recipe=Recipe(label_smoothing=0.1),
        memory_limit="300MB",
        ceiling=8,
        confirmed_steps=2,
    )
    assert found.batch_size == 8
    assert found.recipe.label_smoothing == 0.1


def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax", dtype="float32")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def test_a_smoothed_model_trains_and_loads_without_kbatch(tmp_path):
    x = RNG.normal(size=(96, 4)).astype("float32")
    y = np.argmax(x[:, :3], axis=1)
    trained = {}
    for amount in (0.0, 0.3):
        recipe = Recipe(16, learning_rate=0.05, label_smoothing=amount)
        trained[amount], outcome = kbatch.train(recipe, build, x, y, (x, y), epochs=20)
        assert outcome.ended == "horizon"
    sure = {
        amount: float(np.max(model.predict(x, verbose=0), axis=1).mean())
        for amount, model in trained.items()
    }
    assert sure[0.3] < sure[0.0] - 0.05
    trained[0.3].save(tmp_path / "model.keras")
    # the process has kbatch's modules from the tests, and what they registered with Keras
    code = """
import sys, keras
for name in [name for name in sys.modules if name.split(".")[0] == "kbatch"]:
    sys.modules[name] = None
keras.saving.get_custom_objects().clear()
print(keras.models.load_model(sys.argv[1]).loss)
"""
    done = forked.code(code, tmp_path / "model.keras")
    assert done.returncode == 0, done.stderr
    assert (
        "sparse_categorical_crossentropy" in done.stdout.lower()
        or "SparseCategoricalCrossentropy" in done.stdout
    )
