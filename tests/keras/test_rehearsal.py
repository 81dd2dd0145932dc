"""What a model cannot be trained with is refused before anything is trained."""

import keras
import keras_tuner
import numpy as np
import pytest

import kbatch
from kbatch import Recipe, Space
from kbatch.errors import KbatchError
from kbatch.training import checks

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(64, 4)).astype("float32"), rng.integers(0, 2, 64)


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def build(hp=None, model=keras.Model, optimizer="sgd"):
    x = keras.Input((4,))
    made = model(x, keras.layers.Dense(1, "sigmoid", dtype="float32")(x))
    made.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    return made


def own_step(hp=None):
    return build(model=OwnStep)


def scheduled(hp=None):
    return build(optimizer=keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9)))


def averaging(hp=None):
    return build(optimizer=keras.optimizers.SGD(use_ema=True))


def compiled_adam(hp=None):
    return build(optimizer="adam")


@pytest.mark.parametrize(
    ("own", "axes", "said"),
    [
        (own_step, {"training": ("plain", "sam:0.05")}, "train_step"),
        (own_step, {"batch_schedule": ("constant", "noise:4")}, "train_step"),
        (build, {"dropout_scale": (1, 2)}, "Dropout layer"),
        (build, {"dropout_rule": ("constant", "sqrt")}, "Dropout layer"),
        (build, {"normalization": ("batch", "group")}, "BatchNormalization"),
        (scheduled, {"optimizer": "compiled", "training": ("plain", "proximal:1")}, "schedule"),
        (averaging, {"optimizer": "compiled", "ema": (None, 0.9)}, "averaged once"),
        (compiled_adam, {"optimizer": "compiled", "policy": ("float32", "float16")}, "float16"),
    ],
)
def test_a_search_is_refused_before_it_trains(tmp_path, own, axes, said):
    space = Space(**{"optimizer": "sgd", "policy": "float32", "batch_size": (16, 32), **axes})
    hypermodel = kbatch.HyperModel(own, space, seconds_per_trial=0.2)
    tuner = keras_tuner.RandomSearch(
        hypermodel, kbatch.objective(), 4, directory=tmp_path, project_name="p"
    )
    with pytest.raises(KbatchError, match=said):
        tuner.search(X, Y, validation_data=(X, Y), verbose=0)
    assert not (tmp_path / "p/kbatch/records.jsonl").exists()


def test_a_default_space_makes_no_model():
    assert list(checks.rehearsed_recipes(Space(policy="float32"))) == []


def test_a_recipe_to_start_with_may_be_the_baseline(tmp_path):
    """The optimizer of a compiled model is the baseline's, with all of its settings."""
    space = Space(optimizer="sgd", policy="float32", baseline=kbatch.starting_recipe("accuracy"))
    hypermodel = kbatch.HyperModel(build, space, seconds_per_trial=0.2)
    made = hypermodel.terms.model_maker.baseline(space.baseline)
    assert made == Recipe(32, "compiled", None)
