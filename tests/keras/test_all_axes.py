"""Every axis in a stock tuner's search, with accumulation and recompute on."""

import keras
import keras_tuner
import numpy as np
import pytest

import kbatch
from kbatch import Space
from kbatch.axes import AXIS

RATES = {"sgd": 0.02, "adam": 0.002, "adamw": 0.002, "lars": 2.0, "lamb": 0.01}
# At least two values of each axis; the batch sizes are last, and all above the micro-batch.
VALUES = {
    "policy": ("float32", "mixed_float16", "mixed_bfloat16"),
    "optimizer": (*RATES, "compiled"),
    "recompute": ("minimal", "sqrt"),
    "warmup_passes": (0.0, 1.0),
    "augmentation": ("none", "flip_shift", "mixup", "flip_shift_cutmix"),
    "label_smoothing": (0.0, 0.1),
    "weight_decay": (0.0, 0.01),
    "weight_decay_rule": ("sqrt", "constant"),
    "momentum": (0.9, 0.5),
    "beta_2": (0.999, 0.95),
    "momentum_rule": ("constant", "examples"),
    "dropout_scale": (1.0, 0.5),
    "dropout_rule": ("constant", "sqrt"),
    "schedule": ("constant", "cosine", "steps"),
    "training": ("plain", "sam:0.05", "proximal:0.1:2"),
    "clip_norm": (None, 1.0),
    "ema": (None, 0.9),
    "batch_schedule": ("constant", "linear:2", "exponential:2", "steps:2", "plateau:2"),
    "normalization": ("batch", "group"),
    "batch_size": (32, 48),
}
TRIALS = 8
rng = np.random.default_rng(0)
X = rng.integers(0, 255, (120, 8, 8, 3)).astype("float32")
Y = (X.mean(axis=(1, 2, 3)) > np.median(X.mean(axis=(1, 2, 3)))).astype("int32")


def build(hp):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(4, "relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, "sigmoid", dtype="float32"),
        ]
    )
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    return model


def space(**fixed):
    values = {**VALUES, **fixed}
    return Space(**values, jit_compile=False, learning_rate=RATES, micro_batch_size=16)


def search(directory, space, trials, seed):
    hypermodel = kbatch.HyperModel(build, space, seconds_per_trial=0.3)
    tuner = keras_tuner.RandomSearch(
        hypermodel, kbatch.objective(), trials, seed=seed, directory=directory, project_name="p"
    )
    tuner.search(X, Y, validation_data=(X[:40], Y[:40]), class_weight={0: 1.0, 1: 2.0})
    found = kbatch.results.load(tuner)
    return found[~found["baseline"]]


def test_every_axis_is_among_the_values():
    rates = {f"learning_rate_{name}" for name in RATES}
    assert set(VALUES) == set(AXIS) - rates - {"jit_compile"}  # XLA has a search of its own


@pytest.mark.filterwarnings("ignore:Hyperparameters of `build`")
def test_random_recipes_of_all_axes_train(tmp_path):
    found = search(tmp_path, space(), TRIALS, seed=2)
    assert len(found) == TRIALS
    assert set(found["ended"]) <= {"horizon"}, found["remarks"].to_list()
    assert (found["micro_batch_size"] == 16).all()
    for axis in ("optimizer", "training", "batch_schedule", "schedule", "normalization"):
        assert found[axis].nunique() > 1
    for _, row in found.iterrows():
        assert str(kbatch.Recipe.from_dict(row)) == row["recipe"]


def test_float16_and_float8_train_in_a_search(tmp_path):
    """They have a space of their own, since neither goes with all optimizers and methods."""
    short = Space(
        **{axis: VALUES[axis][:1] for axis in ("recompute", "batch_size", "dropout_scale")},
        policy=("float16", "float8"),
        optimizer=("sgd", "lars"),
        learning_rate=RATES,
        clip_norm=(None, 1.0),
        ema=(None, 0.9),
        jit_compile=False,
        micro_batch_size=16,
    )
    found = search(tmp_path, short, 4, seed=1)
    assert set(found["ended"]) <= {"horizon"}, found["remarks"].to_list()
    assert set(found["policy"]) == {"float16", "float8"}
    assert found["clip_norm"].nunique() == found["ema"].nunique() == 1
    assert (found["micro_batch_size"] == 16).all()


@pytest.mark.slow
def test_batches_grow_by_the_noise_in_a_search(tmp_path):
    """The noise is measured between passes: a batch without a limit takes two."""
    by_noise = Space(
        optimizer="sgd",
        learning_rate=RATES,
        policy="float32",
        batch_size=(32, 48),
        batch_schedule=("constant", "noise:4"),
        recompute="minimal",
    )
    found = search(tmp_path, by_noise, 4, seed=0)
    grown = found[found["batch_schedule"] == "noise:4"]
    assert set(found["ended"]) == {"horizon"}
    assert (2 * grown["micro_batch_size"] == grown["batch_size"]).all()
    assert grown["noise_scale"].notna().any()


@pytest.mark.slow
def test_xla_compiles_recipes_of_the_other_axes(tmp_path):
    few = {axis: values[-1] for axis, values in VALUES.items()}
    few |= {"batch_schedule": "constant", "optimizer": "sgd", "policy": "float32"}
    for training in ("plain", "sam:0.05"):
        one = Space(
            **{**few, "training": training},
            jit_compile=True,
            learning_rate=RATES,
            micro_batch_size=16,
        )
        (row,) = search(tmp_path / training.replace(":", "_"), one, 1, seed=0).to_dict("records")
        assert (row["ended"], row["jit_compile"], row["training"]) == ("horizon", True, training)
