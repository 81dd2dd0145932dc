"""The portfolio: what a search tries early because it was good on other tasks, and when it does."""

import keras
import numpy as np
import pytest
from keras import layers
from short_searches import SECONDS

import kbatch
from kbatch.models.weight_history import was_trained
from kbatch.results.loading import load_records
from kbatch.search.portfolio import ENTRIES, recipes_for

FAST = {"policy": "float32", "jit_compile": False}
SPACES = {
    "default": ({}, [0, 4, 5]),
    "all of it": (
        {"optimizer": ("adam", "adamw"), "schedule": ("constant", "cosine")},
        [0, 1, 2, 3],
    ),
    "one size": ({"batch_size": (64,)}, [0, 5]),
    "other sizes": ({"batch_size": (24, 48)}, []),
    "another optimizer": ({"optimizer": "sgd"}, []),
    "low rates": ({"learning_rate": {"adam": (1e-5, 1e-3)}, "optimizer": "adam"}, [4]),
    "one rate": ({"learning_rate": {"adam": [6.36e-3, 1.0]}, "optimizer": "adam"}, [0]),
}


@pytest.mark.parametrize("kind", SPACES)
def test_what_a_space_draws_is_tried(kind):
    arguments, places = SPACES[kind]
    space = kbatch.Space(**FAST, **arguments)
    assert recipes_for(space) == [ENTRIES[place] for place in places]


def network(*shape):
    inputs = keras.Input(shape)
    hidden = layers.Dense(80, "relu")(layers.Flatten()(inputs))
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def searched(folder, build, shape, **arguments):
    """The recipes of a search of four trials, in their order."""
    random = np.random.default_rng(0)
    x = random.normal(size=(600, *shape)).astype("float32")
    y = (x.reshape(600, -1)[:, 0] > 0).astype("int32")
    tuner = kbatch.Tuner(
        build,
        kbatch.Space(**FAST),
        seconds_per_trial=SECONDS,
        directory=folder,
        project_name="p",
        **arguments,
    )
    held = (x[512:], y[512:])
    tuner.search(x[:512], y[:512], validation_data=held, max_trials=4, verbose=0)
    return [record.recipe for record in load_records(tuner) if record.trial >= 0]


def is_first(recipe):
    """Whether a recipe is the first of the portfolio."""
    rate = recipe.learning_rate or 0.0
    return recipe.batch_size == 64 and rate == pytest.approx(6.36e-3 * 2**0.5)


def test_a_search_tries_it_behind_the_start(tmp_path, capsys):
    recipes = searched(tmp_path, lambda: network(20), (20,))
    assert any(map(is_first, recipes[:3]))
    assert capsys.readouterr().out.count("portfolio: early trial of adam ") == 3
    # of the first four trials two have another size than the baseline
    assert sum(each.batch_size != 32 for each in recipes) >= 2
    # a search that goes on says it once
    searched(tmp_path, lambda: network(20), (20,))
    assert "portfolio" not in capsys.readouterr().out


SAID = {
    "left out": "",
    "pictures": "portfolio: not tried, since the examples are pictures",
    "weights of another training": (
        "portfolio: not tried, since the model has frozen layers, or weights that are not new"
    ),
}


@pytest.mark.parametrize("kind", SAID)
def test_it_is_not_tried_and_why_is_said(kind, tmp_path, capsys):
    shape = (4, 4, 3) if kind == "pictures" else (20,)

    def build():
        model = network(*shape)
        if kind == "weights of another training":
            kernel = model.layers[2].kernel
            kernel.assign(np.random.default_rng(1).normal(0, 1, kernel.shape))
        return model

    arguments = {"learn_from": ()} if kind == "left out" else {}
    recipes = searched(tmp_path, build, shape, **arguments)
    said = [line for line in capsys.readouterr().out.splitlines() if "portfolio" in line]
    assert said == [SAID[kind]] * bool(SAID[kind])
    assert not any(map(is_first, recipes))


NEW = {
    "dense": lambda: [layers.Dense(64), layers.Dense(64, kernel_initializer="he_normal")],
    "normal": lambda: [layers.Dense(64, kernel_initializer="random_normal")],
    "orthogonal": lambda: [layers.Dense(64, kernel_initializer="orthogonal")],
    "zeros": lambda: [layers.Dense(64, kernel_initializer="zeros")],
    "normalized": lambda: [layers.Dense(64), layers.BatchNormalization()],
    "recurrent": lambda: [layers.Reshape((8, 8)), layers.LSTM(32), layers.Dense(64)],
}


@pytest.mark.parametrize("kind", NEW)
@pytest.mark.parametrize("seed", range(3))
def test_new_weights_are_new(kind, seed):
    keras.utils.set_random_seed(seed)
    assert not was_trained(keras.Sequential([keras.Input((64,)), *NEW[kind]()]))


def test_an_initializer_of_the_users_is_not_asked():
    class Once(keras.initializers.RandomNormal):
        calls = 0

        def __call__(self, shape, dtype=None, **kwargs):
            Once.calls += 1
            return super().__call__(shape, dtype, **kwargs)

    model = keras.Sequential([keras.Input((64,)), layers.Dense(64, kernel_initializer=Once())])
    assert not was_trained(model)
    assert Once.calls == 1


def test_a_seed_generator_of_the_users_stays_where_it_is():
    seed = keras.random.SeedGenerator(3)
    initializer = keras.initializers.RandomNormal(seed=seed)
    model = keras.Sequential([keras.Input((64,)), layers.Dense(64, kernel_initializer=initializer)])
    before = np.array(seed.state)
    assert not was_trained(model)
    np.testing.assert_array_equal(seed.state, before)


def test_signs_of_an_weight_history_are_found():
    def model():
        found = NEW["normalized"]()
        return keras.Sequential([keras.Input((64,)), *found]), found

    whole, (dense, _) = model()
    dense.trainable = False
    assert was_trained(whole)
    whole, (_, normalization) = model()
    normalization.moving_mean.assign(np.ones(64))
    assert was_trained(whole)
    whole, (dense, _) = model()
    dense.kernel.assign(5 * dense.kernel)
    assert was_trained(whole)
    inner, (dense, _) = model()
    dense.kernel.assign(5 * dense.kernel)
    assert was_trained(keras.Sequential([keras.Input((64,)), inner]))
