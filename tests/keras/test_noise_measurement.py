"""`kbatch.noise_scale`: the truth in closed form, what users bring, and what is refused."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kbatch
from kbatch import ModelSpec, Outcome, Recipe
from kbatch.errors import DataError, KbatchError, MemoryLimitError, ModelError, RecipeError
from kbatch.records.store import Record
from kbatch.results import loading
from kbatch.rules.scaling import learning_rate_factor
from kbatch.training.noise import NoiseScale, split

RNG = np.random.default_rng(0)
VARIANCES, WEIGHTS, NOISE = np.array([4, 2, 1, 1, 0.5, 0.25]), RNG.normal(size=6), 2.0
STILL = Recipe(128, "sgd", 1e-9)  # so slow that the weights stay where they are
FEW = 12  # updates, where only what comes out matters, not how much


def linear():
    """A linear regression from 0."""
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile("sgd", "mse")
    return model


@pytest.fixture(scope="module")
def regression():
    x = RNG.normal(size=(200_000, 6)) * np.sqrt(VARIANCES)
    return x, x @ WEIGHTS + NOISE * RNG.normal(size=len(x))


def closed_form():
    """The noise scale of the squared error at 0, for normal inputs.

    One example's gradient is `-2 (w x + e) x`. By Isserlis' theorem the mean of its squared norm is
    `4 ((w L w + s^2) tr L + 2 w L^2 w)`, where L is the covariance of x, and its mean is `-2 L w`.
    """
    along, twice = (VARIANCES * WEIGHTS**2).sum(), (VARIANCES**2 * WEIGHTS**2).sum()
    squared_norm = 4 * twice
    trace = 4 * ((along + NOISE**2) * VARIANCES.sum() + 2 * twice) - squared_norm
    return trace / squared_norm


@pytest.fixture(scope="module")
def found(regression):
    x, y = regression
    return kbatch.noise_scale(
        linear, x.astype("float32"), y.astype("float32"), STILL, updates=300, seed=1
    )


def test_single_gradients_have_the_noise_of_the_closed_form(regression):
    x, y = regression
    gradients = -2 * y[:, None] * x
    trace = gradients.var(axis=0, ddof=1).sum()
    squared_norm = (gradients.mean(axis=0) ** 2).sum() - trace / len(x)
    assert trace / squared_norm == pytest.approx(closed_form(), rel=0.05)


def test_the_critical_batch_is_that_of_the_closed_form(found):
    assert found.critical_batch == pytest.approx(closed_form(), rel=0.15)
    assert found.low < closed_form() < found.high
    assert found.low < found.critical_batch < found.high < 1.5 * found.low


def test_the_result_says_how_it_was_measured(found):
    assert (found.updates, found.examples_per_pass, found.passes) == (150, 16, 8)
    assert found.trace / found.squared_norm == pytest.approx(found.critical_batch)
    assert str(found) == (
        f"critical batch {found.critical_batch:.0f} (95 % interval {found.low:.0f} to "
        f"{found.high:.0f}), from 150 updates of 8 x 16 examples"
    )


def test_the_record_of_a_training_holds_it(regression):
    x, y = (part.astype("float32") for part in regression)
    recipe = Recipe(128, "sgd", 1e-9, micro_batch_size=16)
    _, outcome = kbatch.train(
        recipe, linear, x[:76800], y[:76800], (x[:64], y[:64]), epochs=1, metric="val_loss"
    )
    assert outcome.updates == 600
    assert outcome.noise_scale == pytest.approx(closed_form(), rel=0.15)
    record = Record("a", "search", 0, 0, recipe, outcome, 0.0)
    again = Record.from_dict(json.loads(json.dumps(record.to_dict())))
    assert again.outcome.noise_scale == outcome.noise_scale
    assert loading.rows([again])["noise_scale"].tolist() == [outcome.noise_scale]


def test_a_training_in_one_pass_has_none(build, points):
    train, validation = points
    _, outcome = kbatch.train(Recipe(64), build, *train, validation, epochs=1)
    assert outcome.noise_scale is None


def test_outcomes_of_old_records_load():
    fields = Outcome("horizon", updates=3).to_dict()
    del fields["noise_scale"]
    assert Outcome.from_dict(fields) == Outcome("horizon", updates=3, noise_scale=None)


def test_without_a_visible_gradient_the_result_says_so():
    unknown = NoiseScale(math.inf, 1200.4, math.inf, 100, 8, 8, -0.1, 4.0)
    assert str(unknown) == "critical batch above 1,200, from 100 updates of 8 x 8 examples"
    open_ended = NoiseScale(2000.0, 1200.4, math.inf, 100, 8, 8, 0.1, 200.0)
    assert "2,000 (95 % interval above 1,200)" in str(open_ended)
    assert unknown.learning_rate_rule == "linear"
    assert open_ended.learning_rate_rule == "gain:2000"
    assert learning_rate_factor(64, open_ended.learning_rate_rule) < learning_rate_factor(
        64, unknown.learning_rate_rule
    )


@pytest.mark.parametrize(
    ("batch_size", "passes"), [(2, 2), (8, 8), (30, 10), (31, 31), (64, 8), (100, 10), (1024, 8)]
)
def test_a_batch_is_split_into_about_8_passes(batch_size, passes):
    assert split(Recipe(batch_size)).accumulation_steps == passes


@pytest.mark.parametrize("recipe", ["adam", {}, {"batch_size": 32}])
def test_what_is_no_recipe_is_refused(recipe, points):
    (x, y), validation = points
    with pytest.raises(RecipeError, match="`recipe` must be a Recipe. Received: (str|dict)"):
        kbatch.noise_scale(linear, x, y, recipe)
    with pytest.raises(RecipeError, match="`recipe` must be a Recipe. Received: (str|dict)"):
        kbatch.train(recipe, linear, x, y, validation, epochs=1)


def test_a_recipe_that_accumulates_keeps_its_passes():
    recipe = Recipe(64, micro_batch_size=32)
    assert split(recipe) is recipe


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (Recipe(1), "split into equal passes, at least 2 and at most 32"),
        (Recipe(1009), "batch_size=1009"),
        (Recipe(64, training="sam:0.05"), "training='plain'"),
        (Recipe(64, batch_schedule="linear:8"), "batch_schedule='constant'"),
    ],
)
def test_other_recipes_are_refused(recipe, said):
    with pytest.raises(RecipeError, match=said):
        split(recipe)


def many_kinds(kind, points):
    (x, y), _ = points
    x, y = x[:320], y[:320]
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    return {
        "arrays": (x.astype("float64"), y),
        "dataset": (dataset,),
        "batches": (dataset.batch(40),),
        "dict": ({"a": x[:, :6], "b": x[:, 6:]}, y),
        "outputs": (x, {"first": y, "second": y}),
        "words": ((np.abs(x[:, :6]) * 4).astype("int32") % 9, np.stack([y] * 6, axis=1)[..., None]),
    }[kind]


def two_inputs():
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    out = layers.Dense(1, "sigmoid")(layers.Concatenate()([a, b]))
    return keras.Model({"a": a, "b": b}, out)


def two_outputs():
    x = keras.Input((12,))
    both = {name: layers.Dense(1, "sigmoid", name=name)(x) for name in ("first", "second")}
    model = keras.Model(x, both)
    model.compile("adam", {"first": "binary_crossentropy", "second": "mse"})
    return model


def masked():
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True),
            layers.Dense(1, "sigmoid", dtype="float32"),
        ]
    )


class Late(keras.Model):
    """Knows its inputs when it sees them, and its optimizer has a schedule."""

    def __init__(self):
        super().__init__()
        self.last = layers.Dense(1, "sigmoid", dtype="float32")
        rate = keras.optimizers.schedules.CosineDecay(0.1, 100)
        self.compile(keras.optimizers.SGD(rate), "binary_crossentropy")

    def call(self, inputs):
        return self.last(inputs)


def normed():
    return keras.Sequential(
        [keras.Input((12,)), layers.BatchNormalization(), layers.Dense(1, "sigmoid")]
    )


CROSS_ENTROPY = {"loss": "binary_crossentropy"}


@pytest.mark.parametrize(
    ("build", "kind", "recipe", "arguments"),
    [
        (None, "arrays", Recipe(32, micro_batch_size=8), {}),
        (None, "dataset", Recipe(32, policy="mixed_float16"), {"batched": False}),
        (None, "batches", Recipe(32, jit_compile=True), CROSS_ENTROPY),
        (two_inputs, "dict", Recipe(32, clip_norm=1.0), CROSS_ENTROPY),
        (two_outputs, "outputs", Recipe(32), {}),
        (masked, "words", Recipe(32, "sgd", 0.1, 5), CROSS_ENTROPY),
        (
            lambda: Late(),
            "arrays",
            Recipe(32, "compiled", None),
            {"class_weight": {0: 1.0, 1: 2.0}},
        ),
    ],
)
def test_it_takes_what_a_training_takes(build, raw, points, kind, recipe, arguments):
    build = build or raw
    if build is raw:
        arguments = {**CROSS_ENTROPY, **arguments}
    noise = kbatch.noise_scale(
        build, *many_kinds(kind, points), recipe=recipe, updates=FEW, **arguments
    )
    assert noise.updates == FEW // 2
    assert 0 <= noise.low <= noise.critical_batch <= noise.high
    assert noise.trace > 0
    assert noise.remarks == ()


def test_a_specification_may_stand_for_build(raw, points):
    spec = ModelSpec(raw, loss="binary_crossentropy", seed=3)
    first, second = (kbatch.noise_scale(spec, *points[0], updates=FEW) for _ in range(2))
    assert first == second
    assert first.examples_per_pass * first.passes == 32


def test_batch_normalization_is_told_of(points):
    noise = kbatch.noise_scale(normed, *points[0], updates=FEW, loss="binary_crossentropy")
    assert "batch normalization sees passes of 4" in noise.remarks[0]


@pytest.mark.parametrize(
    ("data", "arguments", "error", "said"),
    [
        (lambda x, y: (x[:31], y[:31]), {}, DataError, "at most the number of training examples"),
        (lambda x, y: (x, None), {}, DataError, "Labels must come with arrays"),
        (lambda x, y: (x[:, :5], y), {}, DataError, "shape of the model's input"),
        (lambda x, y: (x, y), {"updates": 5}, KbatchError, "at least 10"),
        (lambda x, y: (x, y), {"recipe": Recipe(1)}, RecipeError, "split into equal passes"),
        (lambda x, y: (x * np.nan, y), {"updates": FEW}, ModelError, "must be finite"),
        (lambda x, y: (x, y), {"values": {"units": 3}}, KbatchError, "hyperparameters that"),
        (lambda x, y: (x, y), {"recipe": Recipe(augmentation="?")}, KbatchError, "augmentation"),
        (
            lambda x, y: (x, y),
            {"sample_weight": np.ones(600), "class_weight": {0: 1.0, 1: 2.0}},
            DataError,
            "weighed once",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(build, points, data, arguments, error, said):
    x, y = data(*points[0])
    with pytest.raises(error, match=said):
        kbatch.noise_scale(build, x, y, **arguments)


def test_a_model_that_does_not_fit_is_refused(points):
    def build():
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    with pytest.raises(MemoryLimitError, match="smaller micro_batch_size"):
        kbatch.noise_scale(build, *points[0])
