"""Optimizers and schedules under accumulation: their rates, their updates, loading elsewhere."""

import contextlib
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras.optimizers import schedules

from kbatch import Recipe
from kbatch.errors import ModelError, RecipeError
from kbatch.models import accumulation
from kbatch.models.accumulation import weighed_passes
from kbatch.models.compilation import CompileArguments
from kbatch.models.maker import ModelMaker
from kbatch.models.optimizers import PerUpdate, optimizer_of, schedule_in_passes
from kbatch.recipe_words import ADAMS

ACCUMULATING = Recipe(32, "compiled", None, micro_batch_size=8)
CROSSENTROPY = CompileArguments("binary_crossentropy", ["accuracy"])


def rates(schedule, passes, updates):
    """The rate of each update, read where Keras reads it: at the last pass of the update."""
    return [float(schedule(passes * update + passes - 1)) for update in updates]


@pytest.mark.parametrize("passes", [1, 2, 3, 4, 7, 16, 64])
@pytest.mark.parametrize("warmup", [1, 2, 5, 19, 313])
def test_a_users_warm_up_counts_updates_under_accumulation(passes, warmup):
    rise = schedules.PolynomialDecay(0.3 / (warmup + 1), warmup, 0.3, power=1.0)
    told = schedule_in_passes(rise, passes)
    updates = range(0, warmup + 4, max(warmup // 10, 1))
    wanted = [0.3 * min((update + 1) / (warmup + 1), 1) for update in updates]
    # Keras computes in float32
    assert rates(told, passes, updates) == pytest.approx(wanted, rel=1e-5, abs=2e-7)


@pytest.mark.parametrize("passes", [2, 3, 8])
@pytest.mark.parametrize(
    "own",
    [
        schedules.PiecewiseConstantDecay([1, 4], [1.0, 0.5, 0.1]),
        schedules.PolynomialDecay(0.4, 7, 0.01, power=2.0),
        schedules.ExponentialDecay(0.4, 5, 0.6),
        schedules.ExponentialDecay(0.4, 3, 0.6, staircase=True),
        schedules.InverseTimeDecay(0.4, 5, 0.6),
        schedules.InverseTimeDecay(0.4, 3, 0.6, staircase=True),
        schedules.CosineDecay(0.4, 9, alpha=0.1),
        schedules.CosineDecay(0.1, 9, warmup_target=0.4, warmup_steps=4),
        schedules.CosineDecay(0.1, 9, warmup_target=0.4, warmup_steps=0),
    ],
    ids=lambda own: type(own).__name__ if isinstance(own, schedules.LearningRateSchedule) else None,
)
def test_schedules_of_keras_own_are_told_in_its_own_words(own, passes):
    told = schedule_in_passes(own, passes)
    assert type(told) is type(own)
    assert rates(told, passes, range(15)) == pytest.approx(
        [float(own(update)) for update in range(15)], rel=2e-5
    )


@pytest.mark.parametrize(
    "own",
    [
        schedules.CosineDecayRestarts(0.4, 5),
        schedules.PolynomialDecay(0.4, 7, cycle=True),
        schedules.ExponentialDecay(0.4, 2.5, 0.6, staircase=True),
        schedules.InverseTimeDecay(0.4, 1, 3.0),
    ],
    ids=["restarts", "cycle", "odd steps", "steep"],
)
def test_other_schedules_count_updates_and_a_remark_says_so(own):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer_of(ACCUMULATING, keras.optimizers.SGD(own)), "mse")
    schedule = model.optimizer._learning_rate
    assert isinstance(schedule, PerUpdate)
    assert rates(schedule, 4, range(15)) == pytest.approx(
        [float(own(update)) for update in range(15)]
    )
    assert any(
        "kbatch can be imported" in remark
        for remark in accumulation.accumulation_remarks(model, ACCUMULATING)
    )


def test_a_model_saved_by_an_older_version_loads(tmp_path):
    """Older versions wrapped every warm-up under accumulation."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(
        keras.optimizers.Adam(
            PerUpdate(schedules.PolynomialDecay(0.1, 4, 0.5, power=1.0), 4),
            gradient_accumulation_steps=4,
        ),
        "mse",
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert rates(loaded.optimizer._learning_rate, 4, range(6)) == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.5]
    )


WITHOUT_KBATCH = """
import sys
sys.modules["kbatch"] = None
import keras
for path in sys.argv[1:]:
    model = keras.models.load_model(path)
    assert model.optimizer is not None and model.compiled, path
    print(type(model.optimizer).__name__)
"""


@pytest.mark.slow
def test_a_model_of_any_recipe_loads_without_kbatch(raw, points, tmp_path):
    import kbatch

    def compiled():
        model = raw()
        model.compile(
            keras.optimizers.AdamW(schedules.CosineDecay(0.01, 100)),
            "binary_crossentropy",
            metrics=["accuracy"],
        )
        return model

    (x, y), validation = points
    whole = {"batch_size": 64, "learning_rate": 0.01, "warmup_updates": 3}
    kbatch.register_augmentation("loading_noise", lambda: [keras.layers.GaussianNoise(0.1)])
    recipes = [
        Recipe(**whole),
        Recipe(**whole, micro_batch_size=16),
        Recipe(
            **whole,
            micro_batch_size=16,
            optimizer="sgd",
            policy="mixed_float16",
            augmentation="loading_noise",
        ),
        Recipe(**whole, jit_compile=True, recompute="minimal"),
        Recipe(64, "compiled", None, micro_batch_size=16),
    ]
    paths = []
    for number, recipe in enumerate(recipes):
        own = (
            {}
            if recipe.optimizer == "compiled"
            else {"loss": "binary_crossentropy", "metrics": ["accuracy"]}
        )
        model, _ = kbatch.train(
            recipe, compiled if not own else raw, x, y, validation, epochs=1, **own
        )
        paths.append(str(tmp_path / f"{number}.keras"))
        model.save(paths[-1])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KBATCH, *paths],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["Adam", "Adam", "SGD", "Adam", "AdamW"]


def recurrent_model():
    return tagger(keras.layers.LSTM(4, return_sequences=True))


def sequence_model():
    return tagger(keras.layers.Dense(4, "tanh"))


def tagger(layer):
    """Labels each token; the mask of the padding comes through the layer."""
    tokens = keras.Input((6,), dtype="int32")
    steps = layer(keras.layers.Embedding(9, 4, mask_zero=True)(tokens))
    return keras.Model(tokens, keras.layers.Dense(3)(steps), name="tagger")


def dense_model(*extra):
    return keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(4, "tanh"), *extra, keras.layers.Dense(3)]
    )


SPARSE = keras.losses.SparseCategoricalCrossentropy
MEAN = SPARSE(from_logits=True)


def two_outputs():
    x = keras.Input((5,))
    return keras.Model(x, [keras.layers.Dense(3)(x), keras.layers.Dense(3)(x)])


def regularized():
    return dense_model(keras.layers.Dense(4, activity_regularizer="l2"))


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.parametrize(
    ("build", "loss", "said"),
    [
        (dense_model, SPARSE(True, reduction="sum"), "must be a mean"),
        (dense_model, SPARSE(True, reduction=None), "must be a mean"),
        (two_outputs, [SPARSE(True), SPARSE(True, ignore_class=0)], "with several outputs"),
        (regularized, SPARSE(True, ignore_class=0), "with an activity regularizer"),
        (
            lambda: OwnStep([keras.Input((5,)), keras.layers.Dense(3)]),
            SPARSE(True, ignore_class=0),
            "with a train_step",
        ),
    ],
    ids=["sum", "none", "outputs", "activity", "train_step"],
)
def test_models_that_cannot_accumulate_train_whole_or_not(build, loss, said):
    model_maker = ModelMaker(build, CompileArguments(loss))
    with pytest.raises(ModelError, match=said):
        model_maker.make(Recipe(32, micro_batch_size=8))
    assert model_maker.make(Recipe(32)).compiled


COUNTED = {
    "mask": (recurrent_model, SPARSE(True), False),
    "mask and weights": (sequence_model, SPARSE(True), True),
    "ignored class": (dense_model, SPARSE(True, ignore_class=0), False),
    "mask and ignored class": (sequence_model, SPARSE(True, ignore_class=0), False),
    "weights": (dense_model, SPARSE(True, reduction="mean_with_sample_weight"), True),
    "by name": (sequence_model, "sparse_categorical_crossentropy", False),
}


def tokens(rng, examples):
    """Words of one to six, then padding."""
    return rng.integers(1, 9, (examples, 6)) * (
        np.arange(6) < rng.integers(1, 7, examples)[:, None]
    )


def moved(recipe, x, y, build=dense_model, updates=3, loss=MEAN, weigh=True, **fit):
    """How far the weights move in some epochs of a recipe."""
    model = ModelMaker(build, CompileArguments(loss)).make(recipe)
    config = model.optimizer.get_config()
    before = [each.astype("float64") for each in model.get_weights()]
    given = {"batch_size": recipe.examples_per_pass, "epochs": updates, **fit}
    with weighed_passes(model, recipe) if weigh else contextlib.nullcontext():
        model.fit(x, y, shuffle=False, verbose=0, **given)
    assert "compute_loss" not in vars(model)
    assert model.optimizer.get_config() == config
    after = model.get_weights()
    return np.concatenate(
        [(late - early).ravel() for late, early in zip(after, before, strict=True)]
    )


@pytest.mark.parametrize(
    ("kind", "policy"),
    [*((kind, "float32") for kind in COUNTED), ("ignored class", "mixed_float16")],
)
def test_unequal_passes_are_weighed_to_the_whole_batch(kind, policy):
    build, loss, weighted = COUNTED[kind]
    rng = np.random.default_rng(1)
    shape = (64,) if build is dense_model else (64, 6)
    y = rng.integers(0, 3, shape)
    y[:20] = 0  # passes that count next to nothing beside others that count all
    x = rng.normal(size=(64, 5)).astype("float32") if build is dense_model else tokens(rng, 64)
    weights = rng.uniform(0, 2, shape).astype("float32") if weighted else None
    told = {"build": build, "loss": loss, "updates": 1, "sample_weight": weights}  # two of 32
    whole, accumulated, unweighed = (
        moved(Recipe(32, "sgd", 0.5, policy=policy, micro_batch_size=micro), x, y, **told, **more)
        for micro, more in ((None, {}), (8, {}), (8, {"weigh": False}))
    )
    tolerance = 1e-5 if policy == "float32" else 1e-2
    assert (
        np.linalg.norm(whole - accumulated)
        < tolerance * np.linalg.norm(whole)
        < np.linalg.norm(whole - unweighed)
    )


def masked_inside():
    """The mask ends inside of the model, so that all passes count alike."""
    inside = [keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.LSTM(4)]
    return keras.Sequential([keras.Input((6,)), *inside, keras.layers.Dense(3)])


def penalised():
    return dense_model(keras.layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l2"))


ALIKE = {
    "plain": (dense_model, {}),
    "sample weights": (dense_model, {"sample_weight": np.linspace(0, 2, 32, dtype="float32")}),
    "regularized": (penalised, {}),
    "mask inside": (masked_inside, {}),
    "class weights": (dense_model, {"class_weight": {0: 0.2, 1: 1.0, 2: 3.0}}),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_one_accumulated_update_is_that_of_the_whole_batch(kind):
    build, given = ALIKE[kind]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 5)).astype("float32"), rng.integers(0, 3, 32)
    if build is masked_inside:
        x = tokens(rng, 32)
    whole, accumulated = (
        moved(Recipe(32, "sgd", 0.5, micro_batch_size=micro), x, y, build, 1, weigh=False, **given)
        for micro in (None, 8)
    )
    assert np.linalg.norm(whole - accumulated) < 1e-5 * np.linalg.norm(whole) > 0


def test_batch_normalization_under_accumulation_is_said():
    model_maker = ModelMaker(
        lambda: dense_model(keras.layers.BatchNormalization()), CompileArguments(SPARSE(True))
    )
    accumulating = Recipe(32, micro_batch_size=8)
    assert (
        "sees passes of 8, not the batch of 32"
        in accumulation.accumulation_remarks(model_maker.make(accumulating), accumulating)[0]
    )
    assert accumulation.accumulation_remarks(model_maker.make(Recipe(32)), Recipe(32)) == ()


def test_auto_scale_loss_false_is_kept():
    def build(scale):
        model = dense_model()
        model.compile("adam", SPARSE(True), auto_scale_loss=scale)
        return model

    for scale in (True, False):
        model_maker = ModelMaker(lambda scale=scale: build(scale))
        for recipe in (
            Recipe(policy="mixed_float16"),
            Recipe(32, "compiled", None, policy="mixed_float16", micro_batch_size=8),
        ):
            assert (
                isinstance(model_maker.make(recipe).optimizer, keras.optimizers.LossScaleOptimizer)
                == scale
            )


def test_a_loss_scale_optimizer_of_the_users_accumulates():
    own = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.25, momentum=0.5), initial_scale=64.0, dynamic_growth_steps=7
    )
    kept = optimizer_of(ACCUMULATING, own)
    assert (kept.initial_scale, kept.dynamic_growth_steps) == (64.0, 7)
    assert (kept.inner_optimizer.gradient_accumulation_steps, kept.inner_optimizer.momentum) == (
        4,
        0.5,
    )
    averaged = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.25, use_ema=True))
    with pytest.raises(RecipeError, match="use_ema=True"):
        optimizer_of(ACCUMULATING, averaged)


def test_exclusions_from_weight_decay_hold_under_accumulation():
    own = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    own.exclude_from_weight_decay(var_names=["bias"])
    model = dense_model()
    kept = optimizer_of(ACCUMULATING, own)
    assert [kept._use_weight_decay(variable) for variable in model.trainable_variables[:2]] == [
        True,
        False,
    ]


NAMED = {
    "sgd": {"optimizer": "sgd", "learning_rate": 0.1},
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
    "adamw": {"optimizer": "adamw", "learning_rate": 0.01},
    "lars": {"optimizer": "lars", "learning_rate": 5.0},
    "lamb": {"optimizer": "lamb", "learning_rate": 0.01},
}
SETTINGS = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "clip": {"clip_norm": 0.05},
    "all": {"weight_decay": 0.1, "clip_norm": 0.05, "momentum": 0.5},
}


def in_float64():
    x = keras.Input((5,), dtype="float64")
    hidden = keras.layers.Dense(4, "tanh", dtype="float64")(x)
    return keras.Model(x, keras.layers.Dense(3, dtype="float64")(hidden))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("named", NAMED.values(), ids=NAMED)
def test_accumulated_passes_are_the_whole_batch_for_all(named, settings):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(32, 5)), rng.integers(0, 3, 32)
    told = {"build": in_float64, "class_weight": {0: 1.0, 1: 3.0, 2: 0.5}}
    whole = moved(Recipe(32, **named, **settings), x, y, **told)
    accumulated = moved(Recipe(32, micro_batch_size=8, **named, **settings), x, y, **told)
    assert np.linalg.norm(whole) > 1e-3
    assert np.linalg.norm(whole - accumulated) <= 1e-6 * np.linalg.norm(whole)
    plain = moved(Recipe(32, **named), x, y, **told)
    assert not settings or np.linalg.norm(plain - whole) > 1e-4 * np.linalg.norm(whole)


@pytest.mark.parametrize(
    ("policy", "tolerance"), [("mixed_float16", 1e-6), ("mixed_bfloat16", 0.01)]
)
@pytest.mark.parametrize("named", NAMED.values(), ids=NAMED)
def test_half_precision_accumulates_what_the_whole_batch_is(named, policy, tolerance):
    """Passes of the same examples round alike, so that only the accumulation could differ."""
    rng = np.random.default_rng(3)
    x, y = np.tile(rng.normal(size=(8, 5)), (4, 1)), np.tile(rng.integers(0, 3, 8), 4)
    whole = moved(Recipe(32, **named, policy=policy), x, y)
    accumulated = moved(Recipe(32, micro_batch_size=8, **named, policy=policy), x, y)
    assert np.linalg.norm(whole) > 1e-3
    assert np.linalg.norm(whole - accumulated) <= tolerance * np.linalg.norm(whole)


def test_settings_of_a_recipe_are_those_of_its_optimizer():
    made = {
        name: optimizer_of(Recipe(**named, weight_decay=0.1, momentum=0.5, clip_norm=2.0))
        for name, named in NAMED.items()
    }
    assert [type(each).__name__ for each in made.values()] == [
        "SGD",
        "Adam",
        "AdamW",
        "LARS",
        "Lamb",
    ]
    for name, optimizer in made.items():
        momentum = optimizer.momentum if name in ("sgd", "lars") else optimizer.beta_1
        decay = optimizer.l2 if name == "lars" else optimizer.weight_decay
        assert (momentum, decay, optimizer.global_clipnorm) == (0.5, 0.1, 2.0)
    for name in ADAMS:
        assert optimizer_of(Recipe(**NAMED[name], beta_2=0.9)).beta_2 == 0.9
    for name, named in NAMED.items():
        plain = optimizer_of(Recipe(**named))
        assert name not in ADAMS or plain.beta_2 == 0.999
        assert not plain.weight_decay
        assert plain.global_clipnorm is None


def test_one_update_with_decay_is_the_equation():
    """Decoupled decay takes weight_decay x rate off each weight, beside the gradient's update."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(32, 5)).astype("float32"), rng.integers(0, 3, 32)
    for named in (NAMED["sgd"], NAMED["adam"], NAMED["adamw"]):
        without = moved(Recipe(32, **named), x, y, updates=1)
        decayed = moved(Recipe(32, **named, weight_decay=0.3), x, y, updates=1)
        model = ModelMaker(dense_model, CompileArguments(SPARSE(from_logits=True))).make(Recipe(32))
        start = np.concatenate([each.ravel() for each in model.get_weights()])
        wanted = without - 0.3 * named["learning_rate"] * start
        np.testing.assert_allclose(decayed, wanted, atol=2e-7)


def test_weights_are_averaged_once():
    own = keras.optimizers.Adam(use_ema=True)
    for given in (own, keras.optimizers.LossScaleOptimizer(own)):
        with pytest.raises(RecipeError, match=r"averaged once.*ema=0\.9 and .*use_ema"):
            optimizer_of(Recipe(32, "compiled", None, ema=0.9), given)
    assert optimizer_of(Recipe(32, "compiled", None), own) is own
