"""The proximal mini-batch method against its equations in NumPy."""

import keras
import method_models
import numpy as np
import numpy_training
import pytest

from kbatch import Recipe

OPTIMIZERS = {  # numbers that float32 holds: Keras casts them to it first
    "sgd": (lambda: keras.optimizers.SGD(0.125, 0.5), lambda: numpy_training.Sgd(0.125, 0.5)),
    "adam": (
        lambda: keras.optimizers.Adam(0.0625, 0.5, 0.75),
        lambda: numpy_training.Adam(0.0625, 0.5, 0.75),
    ),
}


@pytest.mark.parametrize("micro", [None, 8])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_equations(name, micro, own_policy):
    made, of_numpy = OPTIMIZERS[name]
    recipe = Recipe(32, "sgd", 0.1, training="proximal:2:4", micro_batch_size=micro)
    model, weights, batches = method_models.equations(made(), recipe)
    expected = numpy_training.proximal(weights, batches, of_numpy(), 2.0, 4)
    unheld = numpy_training.proximal(weights, batches, of_numpy(), 0.0, 4)
    for after, right, wrong in zip(model.get_weights(), expected, unheld, strict=True):
        np.testing.assert_allclose(after, right, rtol=1e-6, atol=1e-8)
        assert np.abs(right - wrong).max() > 1e-4
    assert int(model.optimizer.iterations) == 6 * 4


def test_a_large_penalty_keeps_the_weights_where_the_batch_began():
    """The subproblem's minimum is within |g| / penalty of the start (its gradient is zero)."""
    x, y = method_models.data()
    moved = method_models.moves(
        method_models.compiled_with(keras.optimizers.SGD(1e-3)),
        Recipe(32, "compiled", None, training="proximal:1000:50"),
        x,
        y,
    )
    free = method_models.moves(
        method_models.compiled_with(keras.optimizers.SGD(1e-3)),
        Recipe(32, "compiled", None, training="proximal:1e-9:50"),
        x,
        y,
    )
    assert 0 < np.linalg.norm(moved) < 0.05 * np.linalg.norm(free)


def test_moving_statistics_count_a_batch_once():
    x, y = method_models.data()
    statistics = []
    for method in ("plain", "proximal:0.1:5"):
        model, _ = method_models.trained(
            lambda: method_models.dense(keras.layers.BatchNormalization()),
            Recipe(32, "sgd", 0.1, training=method),
            x,
            y,
            method_models.SPARSE(True),
        )
        normed = model.layers[1]
        statistics.append(np.concatenate([normed.moving_mean, normed.moving_variance]))
    np.testing.assert_array_equal(*statistics)
