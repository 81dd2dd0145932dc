"""Training whose dense layers multiply in float8."""

import keras
import numpy as np
import pytest

import kbatch
from kbatch import Recipe
from kbatch.errors import ModelError
from kbatch.models import policies
from kbatch.models.compilation import CompileArguments
from kbatch.models.maker import ModelMaker
from kbatch.training.pace import RunOptions
from kbatch.training.run import recipe_scope

RNG = np.random.default_rng(0)
X = RNG.normal(size=(128, 6)).astype("float32")
Y = np.argmax(X[:, :3], axis=1)
ARGUMENTS = CompileArguments("sparse_categorical_crossentropy", ["accuracy"])
FLOAT8 = Recipe(32, "adam", 0.02, policy="float8")


def build():
    layers = [
        keras.layers.Dense(16, "relu", name="first"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(16, "relu", name="second"),
        keras.layers.Dense(3, "softmax", dtype="float32", name="last"),
    ]
    return keras.Sequential([keras.Input((6,)), *layers])


def trained(recipe, epochs=20, build=build):
    return kbatch.train(
        recipe, build, X, Y, (X, Y), epochs=epochs, loss=ARGUMENTS.loss, metrics=["accuracy"]
    )


@pytest.mark.parametrize(
    "more",
    [
        {"micro_batch_size": 8, "jit_compile": True},
        {"recompute": "minimal"},
        {"ema": 0.9, "clip_norm": 1.0, "weight_decay": 1e-4, "augmentation": "mixup"},
    ],
    ids=str,
)
def test_a_model_learns_in_float8(more):
    recipe = Recipe(32, "adam", 0.02, policy="float8", **more)
    model, outcome = trained(recipe)
    assert outcome.value > 0.8
    modes = {layer.name: layer.dtype_policy.name for layer in model.layers}
    assert modes["first"] == modes["second"] == "float8_from_mixed_bfloat16"
    assert modes["last"] == "float32"
    assert float(model.get_layer("first").inputs_amax_history[0]) > 0
    assert float(model.get_layer("first").inputs_scale) < 1
    assert any("2 of 4 layers with weights" in remark for remark in outcome.remarks)
    assert any("simulated" in remark for remark in outcome.remarks)
    assert keras.config.dtype_policy().name == "float32"


class Seen(keras.callbacks.Callback):
    """The trainable variables by path after each update."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        variables = self.model.trainable_variables
        self.values.append({each.path: np.array(each) for each in variables})


def test_scales_are_not_averaged():
    recipe, seen = Recipe(32, "sgd", 0.01, policy="float8", ema=0.99), Seen()
    model, _ = kbatch.train(
        *(recipe, build, 50 * X, Y, (50 * X, Y)),
        updates=12,
        callbacks=[seen],
        loss=ARGUMENTS.loss,
        metrics=["accuracy"],
    )
    kept = {each.path: np.array(each) for each in model.trainable_variables}
    scales = [path for path in kept if "_scale" in path or "amax" in path]
    kernel = next(path for path in kept if path.endswith("first/kernel"))
    assert len(scales) == 2 * 6
    # the kept model is that of one of the measurements
    [update] = [
        values
        for values in seen.values
        if all(np.array_equal(values[path], kept[path]) for path in scales)
    ]
    assert not np.array_equal(update[kernel], kept[kernel])


def scales_after_two_updates(recipe):
    """Scale and largest numbers of the first layer, whose inputs are the data."""
    model = ModelMaker(build, ARGUMENTS).make(recipe)
    with recipe_scope(model, recipe, RunOptions(0, "float32")):
        for _ in range(2):
            for at in range(0, recipe.batch_size, recipe.examples_per_pass):
                part = slice(at, at + recipe.examples_per_pass)
                model.train_on_batch(X[part], Y[part])
    layer = model.get_layer("first")
    return [
        float(layer.inputs_scale),
        *np.asarray(layer.inputs_amax_history)[:3],
        float(layer.kernel_scale),
        float(np.asarray(layer.kernel_amax_history)[1]),
    ]


def test_scales_of_accumulated_passes_are_those_of_the_batch():
    whole = scales_after_two_updates(Recipe(32, "sgd", 0.01, policy="float8"))
    passes = scales_after_two_updates(Recipe(32, "sgd", 0.01, policy="float8", micro_batch_size=8))
    np.testing.assert_allclose(passes, whole, rtol=1e-6)
    assert whole[1] == pytest.approx(np.abs(X[:32]).max(), rel=1e-2)


def test_recompute_leaves_scales_and_weights_as_they_are():
    weights = []
    for recompute in ("none", "minimal"):
        recipe = Recipe(32, "sgd", 0.05, policy="float8", recompute=recompute)
        weights.append(trained(recipe, epochs=2)[0].get_weights())
    for plain, recomputed in zip(*weights, strict=True):
        np.testing.assert_allclose(plain, recomputed, rtol=1e-2, atol=1e-3)


def test_weighted_passes_are_refused_by_name():
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=0)
    maker = ModelMaker(build, CompileArguments(loss))
    accumulating = Recipe(32, policy="float8", micro_batch_size=8)
    with pytest.raises(ModelError, match="float8.*count of its own.*4 passes of 8"):
        maker.make(accumulating)
    maker.make(FLOAT8)


def test_a_layer_that_is_called_twice_is_refused_by_name():
    """Keras adds the gradients of both calls, and so the scales: 2 where 1 is meant."""

    def shared(inner=False):
        dense = keras.layers.Dense(6, name="shared")
        block = keras.Sequential([keras.Input((6,)), dense], name="block") if inner else dense
        inputs = keras.Input((6,))
        return keras.Model(inputs, keras.layers.Softmax()(block(block(inputs))))

    for build_model, name in ((shared, "shared"), (lambda: shared(True), "block")):
        with pytest.raises(ModelError, match=f"called once.*Received: {name}"):
            ModelMaker(build_model, ARGUMENTS).make(FLOAT8)


def test_a_nested_model_trains_in_float8():
    def nested():
        inputs = keras.Input((6,))
        return keras.Model(inputs, keras.layers.Softmax(dtype="float32")(build()(inputs)))

    model = ModelMaker(nested, ARGUMENTS).make(FLOAT8)
    remark = policies.float8_remarks(model, FLOAT8)[0]
    assert remark.startswith("float8: 2 of 4 layers")


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (lambda: [keras.Input((6, 6, 1)), keras.layers.Conv2D(3, 6)], "Received: Conv2D"),
        (lambda: [keras.Input((6,)), keras.layers.Softmax()], "Received: no layer"),
        (lambda: [keras.layers.Dense(3)], "must be built"),
    ],
)
def test_models_that_cannot_are_refused_by_name(layers, words):
    with pytest.raises(ModelError, match=words):
        ModelMaker(lambda: keras.Sequential(layers()), ARGUMENTS).make(FLOAT8)


def test_attention_trains_in_float8():
    def attention():
        inputs = keras.Input((6, 4))
        x = keras.layers.MultiHeadAttention(2, 4)(inputs, inputs)
        x = keras.layers.GlobalAveragePooling1D()(x)
        return keras.Model(inputs, keras.layers.Dense(3, "softmax", dtype="float32")(x))

    x = RNG.normal(size=(64, 6, 4)).astype("float32")
    y = RNG.integers(0, 3, 64)
    model, outcome = kbatch.train(
        Recipe(16, policy="float8"),
        *(attention, x, y, (x, y)),
        epochs=2,
        loss=ARGUMENTS.loss,
        metrics=["accuracy"],
    )
    assert "4 of 5 layers" in " ".join(outcome.remarks)
    assert np.isfinite(np.concatenate([each.ravel() for each in model.get_weights()])).all()


def tiny_dense(hp=None):
    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(1, "sigmoid", dtype="float32")]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("adam", "binary_crossentropy")
    return model


def test_the_largest_batch_of_float8_is_found(own_cache, forked_workers):
    found = kbatch.find_max_batch(
        tiny_dense,
        (8,),
        recipe=Recipe(policy="float8"),
        memory_limit="300MB",
        ceiling=64,
        confirmed_steps=2,
    )
    assert found.batch_size == 64
