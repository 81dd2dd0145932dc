"""Sharpness-aware minimisation and the proximal method against their equations in NumPy."""

import keras
import method_models
import numpy as np
import numpy_training
import pytest
import tensorflow as tf

from kbatch import Recipe
from kbatch.models.train_step import offsets

OPTIMIZERS = {  # numbers that float32 holds: Keras casts them to it first
    "sgd": (keras.optimizers.SGD, numpy_training.Sgd, (0.5,)),
    "adam": (keras.optimizers.Adam, numpy_training.Adam, (0.5, 0.75)),
}
# rates, and the equations of a method with its number and with next to none of it
EQUATIONS = {
    "sam:0.5": ({"sgd": 0.25, "adam": 0.0625}, numpy_training.sam, [(0.5,), (1e-12,)]),
    "proximal:2:4": (
        {"sgd": 0.125, "adam": 0.0625},
        numpy_training.proximal,
        [(2.0, 4), (0.0, 4)],
    ),
}


@pytest.mark.parametrize("micro", [None, 8])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("method", EQUATIONS)
def test_updates_are_those_of_the_equations(method, name, micro, own_policy):
    rates, equation, numbers = EQUATIONS[method]
    of_keras, of_numpy, more = OPTIMIZERS[name]
    recipe = Recipe(32, "sgd", 0.25, training=method, micro_batch_size=micro)
    model, weights, batches = method_models.equations(of_keras(rates[name], *more), recipe)
    expected, without = (
        equation(weights, batches, of_numpy(rates[name], *more), *each) for each in numbers
    )
    for after, right, wrong in zip(model.get_weights(), expected, without, strict=True):
        np.testing.assert_allclose(after, right, rtol=1e-6, atol=1e-8)
        assert np.abs(right - wrong).max() > 1e-4
    assert int(model.optimizer.iterations) == 6 * recipe.method.inner_steps


def test_the_way_to_the_worst_weights_has_the_radius():
    found = offsets([tf.constant([3.0, 0.0]), None, tf.constant([[4.0]], tf.float16)], 0.05)
    assert found[1] is None
    np.testing.assert_allclose(found[0], [0.03, 0.0], rtol=1e-6)
    np.testing.assert_allclose(found[2], [[0.04]], rtol=1e-6)


def test_gradients_of_several_types_have_one_norm():
    found = offsets([tf.constant([3.0]), tf.constant([4.0], tf.float64)], 0.05)
    np.testing.assert_allclose(np.concatenate(found), [0.03, 0.04], rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_moves_nothing(bad):
    found = offsets([tf.constant([1.0, bad]), tf.constant([2.0])], 0.05)
    np.testing.assert_array_equal(np.concatenate(found), np.zeros(3))


def test_a_gradient_of_zero_moves_nothing():
    np.testing.assert_array_equal(offsets([tf.zeros(3)], 0.05)[0], np.zeros(3))


@pytest.mark.parametrize("method", ["sam:3", "proximal:0.1:5"])
def test_moving_statistics_are_those_of_a_plain_training(method):
    """The passes at other weights leave none: after one update they are as without them."""
    normal = lambda: method_models.dense(keras.layers.BatchNormalization())  # noqa: E731
    statistics = []
    for each in ("plain", method):
        recipe = Recipe(32, "sgd", 0.1, training=each)
        data, loss = method_models.data(), method_models.SPARSE(True)
        normed = method_models.trained(normal, recipe, *data, loss)[0].layers[1]
        statistics.append(np.concatenate([normed.moving_mean, normed.moving_variance]))
    np.testing.assert_array_equal(*statistics)
    assert not np.allclose(statistics[0], np.repeat([0.0, 1.0], 8), atol=1e-4)


def test_dropout_drops_the_same_units_in_both_passes():
    """With a radius of next to nothing, SAM is plain training, whatever dropout draws."""
    x, y = method_models.data(64)
    moved = [
        method_models.moves(
            lambda: method_models.dense(keras.layers.Dropout(0.5, seed=7)),
            Recipe(32, "sgd", 0.1, training=method, micro_batch_size=8 if micro else None),
            x,
            y,
            method_models.SPARSE(True),
        )
        for method in ("plain", "sam:1e-7")
        for micro in (False, True)
    ]
    method_models.assert_same_moves(moved[0], moved[2], 1e-4)
    method_models.assert_same_moves(moved[1], moved[3], 1e-4)


def test_a_large_penalty_keeps_the_weights_where_the_batch_began():
    """The subproblem's minimum is within |g| / penalty of the start (its gradient is zero)."""
    moved, free = (
        method_models.moves(
            method_models.compiled_with(keras.optimizers.SGD(1e-3)),
            Recipe(32, "compiled", None, training=f"proximal:{penalty}:50"),
            *method_models.data(),
        )
        for penalty in ("1000", "1e-9")
    )
    assert 0 < np.linalg.norm(moved) < 0.05 * np.linalg.norm(free)
