"""Real trainings and a real search by SAM and the proximal method."""

import keras
import keras_tuner
import numpy as np
import pytest

import kbatch
from kbatch import HyperModel, Recipe, Space
from kbatch.training import run

METHODS = ("sam:0.05", "proximal:0.1")


def build(hp=None):
    layers = [keras.layers.Dense(8, "relu") for _ in range(4)]
    model = keras.Sequential(
        [keras.Input((12,)), *layers, keras.layers.Dense(1, "sigmoid", dtype="float32")]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


class Steps(keras.callbacks.Callback):
    """Counts the train steps of Keras."""

    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1


@pytest.mark.parametrize("method", METHODS)
def test_a_training_learns_and_counts_updates(method, points):
    (x, y), validation = points
    recipe = Recipe(64, "adam", 0.01, training=method, micro_batch_size=16, warmup_updates=4)
    steps = Steps()
    model, outcome = kbatch.train(
        recipe, build, x, y, validation, seconds=None, epochs=10, callbacks=[steps]
    )
    assert outcome.updates == steps.steps == 94  # of 64 of 600 examples, ten times
    assert outcome.examples == 94 * 64
    assert outcome.value > 0.8
    assert outcome.final_learning_rate == pytest.approx(0.01)
    assert "train_step" not in vars(model)
    restored = model.evaluate(*validation, verbose=0, return_dict=True)["accuracy"]
    assert restored == pytest.approx(outcome.value, abs=0.02)


@pytest.mark.parametrize("method", METHODS)
def test_an_overflow_is_one_skipped_update(method, points):
    (x, y), validation = points
    x = x.copy()
    x[0] = 1e6  # overflows in float16
    recipe = Recipe(50, "sgd", 0.01, policy="mixed_float16", training=method)
    _, outcome = kbatch.train(recipe, build, x, y, validation, seconds=None, epochs=3)
    assert outcome.updates == 36
    assert 3 <= outcome.skipped_updates <= 4  # one a pass over the data, and perhaps the first
    assert outcome.ended != "nan"


def test_skipped_inner_steps_are_rounded_up_to_updates(monkeypatch):
    monkeypatch.setattr(run, "scaled_updates", lambda model: 30 - 4)
    recipe = Recipe(training="proximal:0.1:3")
    assert run._skipped_updates(None, recipe, 10, 0) == 2
    assert run._skipped_updates(None, Recipe(), 30, 0) == 4


@pytest.mark.slow
def test_a_search_draws_methods_with_passes_and_recompute(points, tmp_path):
    (x, y), validation = points
    space = Space(
        batch_size=(32, 64),
        policy="float32",
        optimizer="sgd",
        jit_compile=False,
        recompute="minimal",
        training=("plain", *METHODS),
        micro_batch_size=16,
    )
    tuner = keras_tuner.RandomSearch(
        HyperModel(build, space, seconds_per_trial=0.3),
        objective=kbatch.objective(),
        max_trials=2,
        seed=4,
        directory=tmp_path,
        project_name="p",
    )
    tuner.search(x, y, validation_data=validation, verbose=0)
    trials = kbatch.results.load(tmp_path / "p").query("not baseline")
    assert list(trials.ended) == ["horizon"] * 2
    assert set(trials.training) & set(METHODS)
    assert set(trials.micro_batch_size) == {16}
    assert np.isfinite(trials.score).all()
    recipe = Recipe.from_dict(trials.iloc[0])
    assert recipe.training in ("plain", *METHODS)
