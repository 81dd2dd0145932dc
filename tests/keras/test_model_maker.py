import keras
import numpy as np
import pytest
import tensorflow as tf

from kbatch import Recipe
from kbatch.data import augmentation
from kbatch.errors import ModelError, RecipeError, SearchError
from kbatch.models.compilation import CompileArguments
from kbatch.models.maker import ModelMaker, call_build, fresh_hyperparameters
from kbatch.models.optimizers import learning_rate_of, optimizer_of
from kbatch.models.policies import policy_scope
from kbatch.models.scopes import augmented
from kbatch.models.start import seed_scope

CROSSENTROPY = CompileArguments("binary_crossentropy", ["accuracy"])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_accumulated_micro_batches_equal_the_whole_batch(optimizer, jit_compile, raw, points):
    (x, y), _ = points
    weights = []
    for micro in (None, 16):
        recipe = Recipe(64, optimizer, 0.01, 3, micro_batch_size=micro, jit_compile=jit_compile)
        model = ModelMaker(raw, CROSSENTROPY, seed=5).make(recipe)
        model.fit(x[:576], y[:576], batch_size=micro or 64, epochs=2, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations.numpy()) == 18
        weights.append(model.get_weights())
    for whole, accumulated in zip(*weights, strict=True):
        np.testing.assert_allclose(accumulated, whole, atol=2e-6)


def test_accumulation_works_with_loss_scaling(raw, points):
    (x, y), _ = points
    recipe = Recipe(64, "sgd", 0.05, 2, policy="mixed_float16", micro_batch_size=16)
    model = ModelMaker(raw, CROSSENTROPY).make(recipe)
    before = model.get_weights()[0].copy()
    model.fit(x[:576], y[:576], batch_size=16, epochs=1, verbose=0)
    assert np.isfinite(model.get_weights()[0]).all()
    assert not np.array_equal(before, model.get_weights()[0])


def test_a_compiled_models_loss_metrics_and_weights_are_kept():
    def build():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.RMSprop(0.03), "mae", metrics=["mse"], loss_weights=[0.5])
        return model

    model_maker = ModelMaker(build)
    kept = model_maker.make(Recipe(optimizer="compiled", learning_rate=None))
    assert type(kept.optimizer).__name__ == "RMSprop"
    assert learning_rate_of(kept.optimizer) == pytest.approx(0.03)
    changed = model_maker.make(Recipe(optimizer="sgd", learning_rate=0.2))
    assert learning_rate_of(changed.optimizer) == pytest.approx(0.2)
    x, y = np.ones((8, 4), "float32"), np.zeros((8, 2), "float32")
    first, second = (model.evaluate(x, y, verbose=0, return_dict=True) for model in (kept, changed))
    assert first == second
    assert first.keys() == {"loss", "mse"}
    assert first["loss"] == pytest.approx(0.5 * np.abs(kept.predict(x, verbose=0)).mean(), rel=1e-5)


def test_a_loss_given_beside_build_is_the_one_that_trains():
    """A copy of it by Keras would have another delta."""
    model = ModelMaker(
        lambda: keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]),
        CompileArguments(keras.losses.Huber(0.25)),
    ).make(Recipe())
    x = np.zeros((2, 1), "float32")
    assert model.evaluate(x, np.full((2, 1), 4.0), verbose=0) == pytest.approx(
        0.25 * (4 - 0.25 / 2)
    )


def test_metrics_are_named_as_in_a_fresh_process():
    def build():
        x = keras.Input((3,))
        model = keras.Model(x, [keras.layers.Dense(1)(x), keras.layers.Dense(1)(x)])
        model.compile(
            "sgd",
            "mse",
            metrics=[
                [keras.metrics.AUC()],
                [keras.metrics.AUC(), keras.metrics.AUC(name="area_7")],
            ],
        )
        return model

    keras.backend.clear_session()
    for kind in (keras.layers.Dense(1), keras.metrics.AUC()):
        assert kind.name in ("dense", "auc")
    x, y = np.zeros((4, 3), "float32"), [np.array([0.0, 0, 1, 1])] * 2
    for _ in range(2):
        measured = ModelMaker(build).make(Recipe()).evaluate(x, y, verbose=0, return_dict=True)
        assert {"dense_auc", "dense_1_auc_1", "dense_1_area_7"} <= measured.keys()
    # the user's own counting goes on
    assert (keras.layers.Dense(1).name, keras.metrics.AUC().name) == ("dense_1", "auc_1")


def test_metrics_given_with_build_lose_the_number_of_keras(raw):
    keras.metrics.AUC()
    arguments = CompileArguments(
        "binary_crossentropy", [keras.metrics.AUC(), keras.metrics.Precision(name="precision_of_3")]
    )
    measured = (
        ModelMaker(raw, arguments)
        .make(Recipe())
        .evaluate(np.zeros((4, 12)), np.array([0, 0, 1, 1]), verbose=0, return_dict=True)
    )
    assert measured.keys() == {"loss", "auc", "precision_of_3"}


def test_layers_made_before_build_keep_their_names():
    """Names given anew could be those of layers that the user shares between models."""
    keras.backend.clear_session()
    shared = keras.layers.Dense(4)

    def build():
        return keras.Sequential([keras.Input((3,)), shared, keras.layers.Dense(1)])

    assert [
        layer.name for layer in ModelMaker(build, CompileArguments("mse")).make(Recipe()).layers
    ] == ["dense", "dense_1"]


def test_the_baseline_has_the_models_own_optimizer_and_jit(build, raw):
    jit = bool(tf.config.list_physical_devices("GPU"))
    assert ModelMaker(build).baseline(Recipe()) == Recipe(
        optimizer="compiled", learning_rate=None, jit_compile=jit
    )
    assert ModelMaker(raw, CROSSENTROPY).baseline(Recipe(batch_size=64)) == Recipe(
        batch_size=64, jit_compile=jit
    )


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_baseline_follows_the_users_own_policy(policy, raw):
    model_maker = ModelMaker(raw, CROSSENTROPY, own_policy=policy)
    recipe = model_maker.baseline(Recipe())
    assert recipe.policy == policy
    assert model_maker.make(recipe).layers[0].compute_dtype == policy.removeprefix("mixed_")
    keras.config.set_dtype_policy("float32")
    assert (
        ModelMaker(raw, CROSSENTROPY).baseline(Recipe(policy="mixed_bfloat16")).policy
        == "mixed_bfloat16"
    )
    with pytest.raises(
        ModelError,
        match=(
            "global dtype policy must be one of float32, mixed_float16, "
            "mixed_bfloat16, float16. Received: float64"
        ),
    ):
        ModelMaker(raw, CROSSENTROPY, own_policy="float64").baseline(Recipe())


def test_an_accumulating_optimizers_schedule_counts_updates():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.5])
    optimizer = optimizer_of(
        Recipe(32, "compiled", None, micro_batch_size=8),
        keras.optimizers.SGD(schedule, momentum=0.0),
    )
    assert optimizer.gradient_accumulation_steps == 4
    assert [float(optimizer._learning_rate(4 * update + 3)) for update in range(4)] == [
        1.0,
        1.0,
        0.5,
        0.5,
    ]
    with pytest.raises(RecipeError, match="use_ema"):
        optimizer_of(
            Recipe(32, "compiled", None, micro_batch_size=8),
            keras.optimizers.SGD(0.1, use_ema=True),
        )


def test_models_that_cannot_be_trained_are_refused(raw):
    with pytest.raises(ModelError, match="must have a loss"):
        ModelMaker(raw).make(Recipe())
    with pytest.raises(ModelError, match=r"must return a keras.Model. Received: str"):
        ModelMaker(lambda: "model", CROSSENTROPY).make(Recipe())
    with pytest.raises(ModelError, match="must be a function"):
        ModelMaker(raw(), CROSSENTROPY).make(Recipe())


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_another_backend_is_refused(backend, raw, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    with pytest.raises(
        ModelError, match=f"must run on TensorFlow. Received: the backend {backend}"
    ):
        ModelMaker(raw, CROSSENTROPY)


@pytest.mark.parametrize("seed", [None, 1.5, "1", True])
def test_a_seed_is_a_whole_number(seed, raw):
    with pytest.raises(SearchError, match="`seed` must be a whole number"):
        ModelMaker(raw, CROSSENTROPY, seed=seed)
    assert [
        type(ModelMaker(raw, CROSSENTROPY, seed=kind(3)).seed) for kind in (int, np.int64, np.uint8)
    ] == [int] * 3
    assert ModelMaker(raw, CROSSENTROPY, seed=-1).seed == -1


def test_loss_said_twice_is_refused(build):
    with pytest.raises(ModelError, match="given once"):
        ModelMaker(build, CROSSENTROPY).make(Recipe())


def test_a_build_that_sets_its_own_policy_is_refused(raw):
    def build():
        keras.config.set_dtype_policy("mixed_bfloat16")
        return raw()

    with pytest.raises(ModelError, match="axis of the search"):
        ModelMaker(build, CROSSENTROPY).make(Recipe())
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_the_policy_reaches_the_model_and_does_not_leak(policy, raw):
    model = ModelMaker(raw, CROSSENTROPY).make(Recipe(policy=policy))
    assert model.layers[0].compute_dtype == policy.removeprefix("mixed_")
    assert ("LossScale" in type(model.optimizer).__name__) == (policy == "mixed_float16")
    assert keras.config.dtype_policy().name == "float32"


def test_the_users_own_policy_comes_back():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        maker_policy = keras.config.dtype_policy().name
        with policy_scope("float32", maker_policy):
            assert keras.config.dtype_policy().name == "float32"
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy("float32")


def test_one_seed_makes_one_model(raw):
    def weights(seed):
        return ModelMaker(raw, CROSSENTROPY, seed=seed).make(Recipe()).get_weights()[0]

    assert np.array_equal(weights(1), weights(1))
    assert not np.array_equal(weights(1), weights(2))


def test_the_users_generators_go_on_as_if_nothing_had_happened():
    import random

    def draws(disturb):
        random.seed(7)
        np.random.seed(7)
        tf.random.set_seed(7)
        keras.utils.set_random_seed(7)
        first = (
            random.random(),
            np.random.rand(),
            float(tf.random.uniform(())),
            float(keras.random.uniform(())),
        )
        if disturb:
            with seed_scope(99):
                random.random(), np.random.rand(), tf.random.uniform(()), keras.random.uniform(())
        return first, (
            random.random(),
            np.random.rand(),
            float(tf.random.uniform(())),
            float(keras.random.uniform(())),
        )

    assert draws(disturb=True) == draws(disturb=False)


def test_the_seed_scope_is_the_same_every_time():
    import random

    def draws():
        with seed_scope(3):
            tensors = tf.random.uniform(()), keras.random.uniform(())
            return random.random(), np.random.rand(), *map(float, tensors)

    first = draws()
    random.random(), np.random.rand(), tf.random.uniform(())
    assert draws() == first


def pixel_model(**settings):
    """A model whose weights stay 0 but for the pixels that it sees lit."""

    def build():
        layers = [
            keras.Input((8, 8, 3)),
            keras.layers.Flatten(),
            keras.layers.Dense(1, kernel_initializer="zeros", dtype="float32"),
        ]
        return keras.Sequential(layers)

    recipe = Recipe(optimizer="sgd", learning_rate=1e-6, **settings)
    return ModelMaker(build, CompileArguments("mse")).make(recipe)


def pixels_seen(model, layers):
    """In how many places training under augmentation shows the one bright pixel."""
    images = np.zeros((4, 8, 8, 3), "uint8")
    images[:, 3, 1] = 200
    with augmented(model, layers):
        model.fit(images, np.ones((4, 1), "float32"), batch_size=4, epochs=30, verbose=0)
        assert ("train_step" in vars(model)) == bool(layers)
    return (np.abs(model.get_weights()[0]).reshape(8, 8, 3)[..., 0] > 0).sum()


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_augmentation_is_only_around_the_models_train_step(policy, jit_compile):
    model = pixel_model(policy=policy, jit_compile=jit_compile)
    names, config = [layer.name for layer in model.layers], model.get_config()
    assert pixels_seen(model, augmentation.layers("flip_shift")) > 3  # in other places than its own
    assert "train_step" not in vars(model)
    assert [layer.name for layer in model.layers] == names
    assert model.get_config() == config


def test_without_augmentation_the_pixel_stays_where_it_is():
    assert pixels_seen(pixel_model(), []) == 1


@pytest.mark.parametrize(
    ("build", "built"),
    [
        (lambda: "no hp", "no hp"),
        (lambda hp: hp.Int("units", 4, 8), 4),
        (lambda hp=None: hp.Int("units", 4, 8), 4),
        (lambda units=7: units, 7),
    ],
)
def test_build_gets_hp_where_it_asks_for_it(build, built):
    assert call_build(build, fresh_hyperparameters(), frozenset()) == built


def test_layers_that_xla_cannot_compile_are_named(raw):
    def build():
        model = raw()
        model.layers[0].supports_jit = False
        return model

    maker = ModelMaker(build, CompileArguments("binary_crossentropy"))
    with pytest.raises(ModelError, match=r"every layer. Received: dense. .*use_cudnn=False"):
        maker.make(Recipe(jit_compile=True))
    assert maker.make(Recipe()).jit_compile is False
