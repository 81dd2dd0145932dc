"""The noise scale as equations: estimates, smoothing, the critical batch and AdaScale's gain."""

import math

import numpy as np
import pytest

from kbatch import Space
from kbatch.errors import SpaceError
from kbatch.rules.noise_scale import DECAY, Estimate, Smoothed, critical_batch, estimate, gain
from kbatch.rules.scaling import learning_rate_factor


@pytest.mark.parametrize("passes", [2, 4, 16])
@pytest.mark.parametrize("size", [1, 8])
def test_the_expected_norms_give_back_gradient_and_noise(passes, size):
    squared_norm, trace = 3.0, 40.0
    found = estimate(
        squared_norm + trace / size, squared_norm + trace / (size * passes), size, passes
    )
    assert found.squared_norm == pytest.approx(squared_norm)
    assert found.trace == pytest.approx(trace)
    assert critical_batch(found) == pytest.approx(trace / squared_norm)


def test_the_trace_of_single_examples_is_their_variance():
    gradients = np.random.default_rng(0).normal(1.0, 2.0, (64, 5))
    norms = (gradients**2).sum(axis=1).mean(), (gradients.mean(axis=0) ** 2).sum()
    found = estimate(*norms, examples_per_pass=1, passes=64)
    assert found.trace == pytest.approx(gradients.var(axis=0, ddof=1).sum())
    assert found.squared_norm == pytest.approx(norms[1] - found.trace / 64)


def test_estimates_have_no_bias_in_simulated_updates():
    rng, size, passes = np.random.default_rng(0), 4, 8
    gradient, variances = np.array([1.0, -0.5, 0.2]), np.array([9.0, 4.0, 1.0])
    noise = rng.normal(size=(20_000, passes, 3)) * np.sqrt(variances / size)
    drawn = gradient + noise
    found = estimate(
        (drawn**2).sum(-1).mean(), (drawn.mean(axis=1) ** 2).sum(-1).mean(), size, passes
    )
    assert found.squared_norm == pytest.approx((gradient**2).sum(), rel=0.02)
    assert found.trace == pytest.approx(variances.sum(), rel=0.01)


def test_a_gradient_hidden_by_noise_has_no_critical_batch():
    assert critical_batch(Estimate(-1e-3, 5.0)) is None
    assert critical_batch(Estimate(0.0, 5.0)) is None
    assert critical_batch(Estimate(1.0, -0.1)) == 0.0


def test_smoothing_divides_averages_and_corrects_their_bias():
    rng = np.random.default_rng(0)
    drawn = [Estimate(*pair) for pair in rng.uniform(1, 3, (50, 2))]
    smoothed = Smoothed()
    assert smoothed.critical_batch is None
    for each in drawn:
        smoothed = smoothed.updated(each)
    weights = DECAY ** np.arange(49, -1, -1)
    norms = np.average([each.squared_norm for each in drawn], weights=weights)
    traces = np.average([each.trace for each in drawn], weights=weights)
    assert smoothed.estimate.squared_norm == pytest.approx(norms)
    assert smoothed.estimate.trace == pytest.approx(traces)
    assert smoothed.critical_batch == pytest.approx(traces / norms)


def test_smoothing_is_no_average_of_ratios():
    smoothed = Smoothed(decay=0.5).updated(Estimate(-0.5, 4.0)).updated(Estimate(1.5, 4.0))
    assert smoothed.critical_batch == pytest.approx(4.0 / ((1.5 * 2 - 0.5) / 3))


@pytest.mark.parametrize("noise_scale", [0.0, 1.0, 480.0, 1e6])
def test_the_gain_at_the_reference_batch_is_1(noise_scale):
    assert gain(32, noise_scale, 32) == 1.0
    assert learning_rate_factor(32, f"gain:{noise_scale}") == 1.0


@pytest.mark.parametrize("batch_size", [8, 64, 4096])
def test_the_gain_lies_between_constant_and_linear(batch_size):
    assert gain(batch_size, 1e12, 32) == pytest.approx(batch_size / 32)
    assert gain(batch_size, 1e-12, 32) == pytest.approx(1.0)
    gains = [gain(batch_size, noise, 32) for noise in (1, 10, 100, 1000)]
    assert gains == sorted(gains, reverse=batch_size < 32)


def test_the_gain_is_the_ratio_of_expected_norms():
    squared_norm, trace = 2.0, 300.0
    expected = (squared_norm + trace / 32) / (squared_norm + trace / 256)
    assert gain(256, trace / squared_norm, 32) == pytest.approx(expected)


def test_gains_from_one_batch_to_the_next_multiply():
    first, second = gain(128, 480, 32), gain(1024, 480, 128)
    assert gain(1024, 480, 32) == pytest.approx(first * second)


def test_a_space_scales_its_rates_by_the_gain():
    space = Space(
        optimizer="sgd",
        learning_rate={"sgd": 0.01},
        learning_rate_rule={"sgd": "gain:480"},
        batch_size=480,
    )
    import keras_tuner

    hp = keras_tuner.HyperParameters()
    space.declare(hp)
    recipe = space.recipe(hp)
    assert recipe.learning_rate == pytest.approx(0.01 * (480 / 32 + 1) / 2)
    assert space.rate_at_32(recipe) == pytest.approx(0.01)


@pytest.mark.parametrize(
    "rule", ["gain", "gain:", "gain:-1", "gain:nan", "gain:inf", "gain:1_0", "gain:many", 480, None]
)
def test_nonsense_in_place_of_a_noise_scale_is_refused(rule):
    with pytest.raises(SpaceError, match=r"must be one of.*Received: .*Pass one of these names"):
        learning_rate_factor(64, rule)
    with pytest.raises(SpaceError):
        Space(learning_rate_rule={"sgd": rule})


def test_an_infinite_noise_scale_is_no_rule_but_linear_is():
    assert not math.isinf(learning_rate_factor(64, "gain:1e300"))
    assert learning_rate_factor(64, "gain:1e300") == pytest.approx(
        learning_rate_factor(64, "linear")
    )
