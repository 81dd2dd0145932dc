"""Batch normalization is replaced by group normalization, and all else of a model stays."""

import keras
import keras_tuner
import numpy as np
import pytest
from keras import layers

import kbatch
from kbatch import HyperModel, Recipe, Space
from kbatch.errors import ModelError
from kbatch.models.accumulation import accumulation_remarks
from kbatch.models.maker import ModelMaker
from kbatch.models.normalization import groups_of

GROUP, BATCH = Recipe(normalization="group"), Recipe()
LOSS = "sparse_categorical_crossentropy"
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(8, 8, 8, 3)).astype("float32"), np.arange(8) % 4


def sequential():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(8, 3, padding="same"),
            layers.BatchNormalization(epsilon=1e-2, scale=False, name="first"),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(32),
            layers.BatchNormalization(gamma_initializer="random_normal"),
            layers.Dense(4, "softmax"),
        ]
    )
    model.compile("adam", LOSS, metrics=["accuracy"])
    return model


def block(filters):
    inputs = keras.Input((8, 8, 3))
    x = layers.BatchNormalization(axis=-1)(layers.Conv2D(filters, 3, padding="same")(inputs))
    return keras.Model(inputs, layers.ReLU()(x), name="block")


def nested():
    """Shared layers, a nested model that is called twice, and operations that are no layers."""
    a, b = keras.Input((8, 8, 3), name="a"), keras.Input((8, 8, 3), name="b")
    inner, norm = block(8), layers.BatchNormalization()
    x = norm(inner(a)) + keras.ops.relu(norm(inner(b)))
    pooled = layers.GlobalAveragePooling2D()(layers.Dropout(0.5)(x))
    model = keras.Model({"a": a, "b": b}, layers.Dense(4, "softmax")(pooled))
    model.compile(keras.optimizers.SGD(0.1), loss=lambda y, p: keras.ops.mean((y - p) ** 2, -1))
    return model


class OfBlocks(layers.Layer):
    def __init__(self):
        super().__init__()
        self.norm = layers.BatchNormalization()

    def build(self, shape):
        self.norm.build(shape)

    def call(self, x):
        return self.norm(x)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm, self.head = layers.BatchNormalization(), layers.Dense(4)
        self.build((None, 3))

    def call(self, x):
        return self.head(self.norm(x))


def both(build, recipe=GROUP):
    maker = ModelMaker(build)
    return maker.make(Recipe()), maker.make(recipe)


def kinds(model):
    found = []
    for layer in model.layers:
        found += kinds(layer) if isinstance(layer, keras.Model) else [type(layer).__name__]
    return found


def weights(model):
    """By their path, without the statistics of a batch."""
    kept = [each for each in model.weights if "moving_" not in each.path]
    return {each.path: each.numpy() for each in kept}


@pytest.mark.parametrize("build", [sequential, nested])
def test_each_layer_is_replaced_and_the_rest_is_kept(build):
    plain, grouped = both(build)
    wanted = [kind.replace("BatchNorm", "GroupNorm") for kind in kinds(plain)]
    assert kinds(grouped) == wanted
    assert type(grouped) is type(plain)
    assert grouped.name == plain.name
    keras.tree.map_structure(np.testing.assert_array_equal, weights(plain), weights(grouped))


@pytest.mark.parametrize("build", [sequential, nested])
def test_the_arguments_of_compile_are_kept(build):
    plain, grouped = both(
        build, Recipe(normalization="group", optimizer="compiled", learning_rate=None)
    )
    assert type(grouped.loss) is type(plain.loss)
    x = X if build is sequential else {"a": X, "b": X}
    y = Y if build is sequential else np.eye(4, dtype="float32")[Y]
    logs = [model.train_on_batch(x, y, return_dict=True) for model in (plain, grouped)]
    assert logs[0].keys() == logs[1].keys()
    named = "Adam" if build is sequential else "SGD"
    assert type(grouped.optimizer).__name__ == named
    assert float(grouped.optimizer.learning_rate) == pytest.approx(0.1 if named == "SGD" else 1e-3)


def test_axis_epsilon_and_initial_values_are_kept():
    model = both(sequential)[1]
    first = model.get_layer("first")
    assert (first.epsilon, first.groups, first.scale, first.axis) == (1e-2, 8, False, -1)
    dense = model.layers[-2]
    assert dense.groups == 2  # of 16 numbers each
    assert np.ptp(dense.gamma) > 0


def test_group_normalization_equals_numpy():
    model = both(sequential)[1]
    layer, convolution = model.get_layer("first"), model.layers[0]
    x = convolution(X).numpy().astype("float64").reshape(8, 64, 8, 1)  # 8 groups of 1 channel
    x = (x - x.mean((1, 3), keepdims=True)) / np.sqrt(x.var((1, 3), keepdims=True) + 1e-2)
    np.testing.assert_allclose(layer(convolution(X)), x.reshape(8, 8, 8, 8), atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "positions", "groups"),
    [(64, 64, 32), (48, 64, 24), (33, 64, 11), (7, 64, 7), (64, 1, 4), (10, 1, 1), (64, 4, 16)],
)
def test_groups_are_the_largest_divisor_that_leaves_numbers(channels, positions, groups):
    assert groups_of(channels, positions) == groups


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("recompute", ["none", "minimal"])
def test_passes_equal_the_whole_batch(policy, recompute):
    """Also under recompute and loss scaling; with batch normalization they do not."""
    trained, plain = {}, policy == "float32" and recompute == "none"
    for normalization in ("group", "batch") if plain else ("group",):
        for micro in (8, 2):
            recipe = Recipe(
                *(8, "sgd", 0.1),
                policy=policy,
                normalization=normalization,
                recompute=recompute,
                micro_batch_size=micro,
            )
            model = ModelMaker(sequential).make(recipe)
            for first in range(0, 16, micro):
                part = slice(first % 8, first % 8 + micro)
                model.train_on_batch(X[part], Y[part])
            trained[normalization, micro] = [each.numpy() for each in model.trainable_variables]
    gaps = {
        name: max(
            np.abs(one - other).max()
            for one, other in zip(trained[name, 8], trained[name, 2], strict=True)
        )
        for name, micro in trained
        if micro == 8
    }
    assert gaps["group"] < (1e-6 if policy == "float32" else 2e-3)
    assert not plain or gaps["batch"] > 1e-3


@pytest.mark.slow
def test_a_replaced_model_is_compiled_by_xla():
    plain, jitted = (
        ModelMaker(sequential).make(Recipe(normalization="group", jit_compile=jit))
        for jit in (False, True)
    )
    losses = [float(model.train_on_batch(X, Y)[0]) for model in (plain, jitted)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_replaced_model_is_saved_and_loaded(tmp_path):
    model = both(nested)[1]
    model.save_weights(tmp_path / "m.weights.h5")
    other = ModelMaker(nested, seed=1).make(GROUP)
    other.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(
        model.predict({"a": X, "b": X}, verbose=0), other.predict({"a": X, "b": X}, verbose=0)
    )


def frozen():
    model = sequential()
    model.get_layer("first").trainable = False
    return model


def pretrained():
    model = sequential()
    model.get_layer("first").moving_mean.assign([1.0] * 8)
    return model


def masked():
    inputs = keras.Input((5,), dtype="int32")
    x = layers.BatchNormalization()(layers.Embedding(9, 4, mask_zero=True)(inputs))
    return keras.Model(inputs, layers.GlobalAveragePooling1D()(x))


def of_one_number():
    return keras.Sequential([keras.Input((1,)), layers.BatchNormalization(), layers.Dense(4)])


CANNOT = [
    (frozen, "first, which is frozen"),
    (pretrained, "earlier training"),
    (Subclassed, "Subclassed"),
    (lambda: keras.Sequential([keras.Input((3,)), OfBlocks(), layers.Dense(4)]), "layer of it"),
    (lambda: keras.Sequential([layers.Dense(3), layers.BatchNormalization()]), "keras.Input"),
    (lambda: keras.Sequential([keras.Input((3,)), layers.Dense(4)]), "to replace"),
    (masked, "have a mask"),
    (of_one_number, "one number"),
]


@pytest.mark.parametrize(("build", "words"), CANNOT, ids=[words for _, words in CANNOT])
def test_what_cannot_be_replaced_is_refused_by_name(build, words):
    model = build()
    if not model.compiled:
        model.compile("sgd", "mse")
    with pytest.raises(ModelError, match=words):
        ModelMaker(lambda: model).make(GROUP)


def test_a_group_normalization_of_ones_own_may_have_a_mask():
    def build():
        inputs = keras.Input((5,), dtype="int32")
        x = layers.GroupNormalization(2)(layers.Embedding(9, 4, mask_zero=True)(inputs))
        x = layers.BatchNormalization()(layers.Dense(8)(layers.GlobalAveragePooling1D()(x)))
        model = keras.Model(inputs, layers.Dense(4)(x))
        model.compile("sgd", "mse")
        return model

    assert kinds(ModelMaker(build).make(GROUP)).count("GroupNormalization") == 2


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (Recipe(16), []),
        (Recipe(8), ["statistics of 8 examples"]),
        (Recipe(64, micro_batch_size=32), ["passes of 32"]),
        (Recipe(64, micro_batch_size=8), ["passes of 8", "statistics of 8 examples"]),
        (Recipe(64, micro_batch_size=8, normalization="group"), []),
    ],
)
def test_statistics_of_few_examples_are_remarked_on(recipe, words):
    said = accumulation_remarks(ModelMaker(sequential).make(recipe), recipe)
    assert len(said) == len(words)
    assert all(word in sentence for word, sentence in zip(words, said, strict=True))
    if any("statistics of" in word for word in words):
        assert 'normalization=("batch", "group")' in said[-1]


def fine_tuned(**called):
    base = keras.Sequential([keras.Input((8,)), layers.Dense(4), layers.BatchNormalization()])
    inputs = keras.Input((8,))
    model = keras.Model(inputs, layers.Dense(1)(base(inputs, **called)))
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("called", [{}, {"training": False}])
@pytest.mark.parametrize("trainable", [True, False])
def test_the_remark_comes_where_fit_moves_the_statistics(called, trainable):
    """Keras 3.15.1 lets `fit` overrule training=False of a call in a functional model."""
    model = fine_tuned(**called)
    model.layers[1].trainable = trainable
    model.compile("sgd", "mse")
    statistics = model.layers[1].layers[-1].moving_mean
    before = statistics.numpy().copy()
    model.fit(np.ones((8, 8)), np.ones((8, 1)), verbose=0)
    moved = not np.array_equal(before, statistics)
    recipe = Recipe(batch_size=32, micro_batch_size=16)
    assert bool(accumulation_remarks(model, recipe)) is moved is trainable


def test_a_search_is_refused_before_it_trains(tmp_path, points):
    def without():
        model = keras.Sequential([keras.Input((12,)), layers.Dense(1, "sigmoid")])
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return model

    space = Space(normalization=("batch", "group"), batch_size=32)
    tuner = keras_tuner.RandomSearch(
        HyperModel(without, space, seconds_per_trial=0.1),
        objective=kbatch.objective(),
        directory=tmp_path,
    )
    with pytest.raises(ModelError, match="to replace"):
        tuner.search(*points[0], validation_data=points[1])
    assert not list(tmp_path.rglob("records.jsonl"))
