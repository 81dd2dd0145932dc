"""LARS against NumPy, and as an optimizer of Keras."""

import keras
import numpy as np
import pytest

from kbatch.models.optimizers import LARS


def oracle(weights, gradients, rate, momentum, trust, l2):
    """Weights after some updates, as the paper writes them."""
    weights = [weight.copy() for weight in weights]
    velocities = [np.zeros_like(weight) for weight in weights]
    for step in gradients:
        for weight, velocity, gradient in zip(weights, velocities, step, strict=True):
            own = rate
            if weight.ndim > 1:
                norms = np.linalg.norm(weight), np.linalg.norm(gradient)
                own = rate * trust * norms[0] / (norms[1] + l2 * norms[0]) if all(norms) else rate
                gradient = gradient + l2 * weight
            velocity[...] = momentum * velocity - own * gradient
            weight += velocity
    return weights


@pytest.mark.parametrize("l2", [0.0, 0.01])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_updates_are_those_of_the_paper(l2, momentum):
    rng = np.random.default_rng(1)
    start = [rng.normal(size=(4, 3)), rng.normal(size=3), np.zeros((2, 2))]
    steps = [[rng.normal(size=each.shape) for each in start] for _ in range(5)]
    steps[3][0] = np.zeros((4, 3))  # a gradient of zeros must not divide by zero
    variables = [keras.Variable(each, dtype="float64") for each in start]
    optimizer = LARS(2.0, momentum, trust=0.02, l2=l2)
    for step in steps:
        optimizer.apply([keras.ops.convert_to_tensor(each) for each in step], variables)
    wanted = oracle(start, steps, 2.0, momentum, 0.02, l2)
    for variable, weight in zip(variables, wanted, strict=True):
        np.testing.assert_allclose(variable.numpy(), weight, rtol=1e-6, atol=1e-9)


def test_a_share_of_the_norm_is_what_a_layer_moves():
    """Without momentum a kernel moves by trust x rate of its norm, whatever the gradient."""
    for scale in (1e-3, 1.0, 1e3):
        kernel = keras.Variable(np.full((3, 3), 2.0))
        LARS(1.0, momentum=0.0, trust=0.01).apply([scale * keras.ops.ones((3, 3))], [kernel])
        moved = np.linalg.norm(kernel.numpy() - 2.0)
        assert moved == pytest.approx(0.01 * np.linalg.norm(np.full((3, 3), 2.0)), rel=1e-4)


def test_squares_of_half_precision_do_not_overflow():
    kernel = keras.Variable(np.full((64, 64), 30.0), dtype="float16")
    LARS(1.0, momentum=0.0).apply([keras.ops.full((64, 64), 500.0, "float16")], [kernel])
    assert np.isfinite(kernel.numpy()).all()
    assert not np.allclose(kernel.numpy(), 30.0)


def test_a_saved_model_loads_with_its_arguments(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(LARS(0.5, 0.8, 0.002, 0.1, global_clipnorm=1.0), "mse")
    model.fit(np.ones((4, 3)), np.ones(4), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert isinstance(loaded, LARS)
    found = (float(loaded.learning_rate), loaded.momentum, loaded.trust, loaded.l2)
    assert found == pytest.approx((0.5, 0.8, 0.002, 0.1))
    assert loaded.global_clipnorm == 1.0
    assert int(loaded.iterations) == 1
