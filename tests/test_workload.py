"""Data and models of every form that find_max_batch takes."""

import json

import memory_models
import numpy as np
import pytest

import kbatch
from kbatch import Recipe, find_max_batch

pytestmark = pytest.mark.usefixtures("own_cache", "forked_workers", "no_worker_is_left")


def test_data_set_a_ceiling_and_labels_are_taken_as_they_are():
    x, y = np.zeros((40, 12), "float32"), np.zeros(40, "int32")
    found = find_max_batch(
        memory_models.uncompiled,
        x,
        y,
        memory_limit="200MB",
        loss="sparse_categorical_crossentropy",
        confirmed_steps=0,
    )
    assert (found.batch_size, found.ceiling, found.first_failing) == (40, 40, None)
    assert "40 is the ceiling" in str(found)
    assert json.loads(found.to_json())["recipe"]["optimizer"] == "adam"


def test_lists_and_batched_datasets_are_taken_as_they_are():
    import tensorflow as tf

    x, y = (
        [np.zeros((9, 8), "float32"), np.zeros((9, 4), "float32")],
        [np.zeros(9, "int32"), np.zeros((9, 1), "float32")],
    )
    assert (
        find_max_batch(
            memory_models.listed, x, y, memory_limit="200MB", confirmed_steps=0
        ).batch_size
        == 9
    )
    batches = (
        tf.data.Dataset.from_tensor_slices((tuple(x), tuple(y))).shuffle(9).batch(4).prefetch(1)
    )
    assert (
        find_max_batch(
            memory_models.listed, batches, memory_limit="200MB", confirmed_steps=0
        ).batch_size
        == 9
    )


def test_dicts_of_inputs_and_outputs():
    x = {"a": np.zeros((9, 8), "float32"), "b": np.zeros((9, 4, 4, 1), "float32")}
    y = {"kind": np.zeros(9, "int32"), "size": np.zeros((9, 1), "float32")}
    assert (
        find_max_batch(
            memory_models.two_outputs, x, y, memory_limit="200MB", confirmed_steps=0
        ).batch_size
        == 9
    )
    shapes = {"a": (8,), "b": (4, 4, 1)}
    assert (
        find_max_batch(
            memory_models.two_outputs, shapes, memory_limit="200MB", ceiling=20, confirmed_steps=0
        ).batch_size
        == 20
    )


def test_a_function_of_a_notebook_travels():
    scope = {"__name__": "__main__"}
    exec(
        (
            "def build(hp):\n    import keras\n"
            "    return keras.Sequential([keras.Input((12,)), "
            "keras.layers.Dense(UNITS)])\nUNITS = 3"
        ),
        scope,
    )
    assert (
        find_max_batch(
            scope["build"], (12,), memory_limit="100MB", loss="mse", ceiling=4, confirmed_steps=0
        ).batch_size
        == 4
    )


def test_a_sequential_model_without_input_is_called_first():
    import keras

    def build():
        return keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])

    assert (
        find_max_batch(
            build, (12,), memory_limit="100MB", loss="mse", ceiling=4, confirmed_steps=0
        ).batch_size
        == 4
    )


@pytest.mark.slow
def test_weighted_data_and_own_augmentation_reach_the_worker():
    import keras
    import tensorflow as tf

    kbatch.register_augmentation("own_noise", lambda: [keras.layers.GaussianNoise(0.1)])
    arrays = np.zeros((64, 24, 24, 3), "float32"), np.zeros(64, "int32"), np.ones(64, "float32")
    recipe = Recipe(optimizer="sgd", learning_rate=0.1, augmentation="own_noise")
    found = find_max_batch(
        memory_models.normed,
        tf.data.Dataset.from_tensor_slices(arrays),
        memory_limit="500MB",
        recipe=recipe,
        confirmed_steps=2,
    )
    assert (found.batch_size, found.ceiling, found.at_ceiling) == (64, 64, True)
