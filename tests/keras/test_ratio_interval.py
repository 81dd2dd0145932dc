"""The interval of a ratio holds the true one as often as it says, and knows when it has no end."""

import math

import numpy as np
import pytest

from kbatch.rules.noise_scale import NoiseEstimate, estimate
from kbatch.training.noise import ratio_interval

DIMENSIONS, UPDATES, SEEDS = 20, 100, 400


def simulated(noise_over_batch, drift, size, passes, seed):
    """The estimates of updates of a noisy gradient that grows, and the true noise scale."""
    rng = np.random.default_rng(seed)
    variances = 1 / np.arange(1, DIMENSIONS + 1)
    squared_norm = variances.sum() / (noise_over_batch * size * passes)
    gradient = np.sqrt(squared_norm / DIMENSIONS)
    growth = np.linspace(1, drift, UPDATES)
    drawn = rng.normal(size=(UPDATES, passes, DIMENSIONS)) * np.sqrt(variances / size)
    drawn += gradient * growth[:, None, None]
    norms = (drawn**2).sum(-1).mean(axis=1), (drawn.mean(axis=1) ** 2).sum(-1)
    found = estimate(*norms, size, passes)
    return found, variances.sum() / (squared_norm * (growth**2).mean())


@pytest.mark.parametrize("noise_over_batch", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("drift", [1.0, 3.0])
@pytest.mark.parametrize(("size", "passes"), [(4, 8), (8, 2)])
def test_about_95_of_100_intervals_hold_the_truth(noise_over_batch, drift, size, passes):
    held = 0
    for seed in range(SEEDS):
        found, truth = simulated(noise_over_batch, drift, size, passes, seed)
        low, high = ratio_interval(found.trace, found.squared_norm)
        held += low <= truth <= high
    assert 0.91 <= held / SEEDS <= 0.985  # the standard error of a share of 400 is 0.011


def test_the_interval_lies_around_the_ratio_of_the_means():
    found, _ = simulated(1.0, 1.0, 8, 8, seed=0)
    ratio = found.trace.mean() / found.squared_norm.mean()
    low, high = ratio_interval(found.trace, found.squared_norm)
    assert 0 < low < ratio < high < math.inf


def test_equal_pairs_leave_no_doubt():
    assert ratio_interval([6.0] * 5, [2.0] * 5) == pytest.approx((3.0, 3.0))


def test_a_drift_is_not_taken_for_error():
    steady = ratio_interval(8 + np.tile([0.1, -0.1], 20), 2 + np.tile([0.1, 0.1, -0.1, -0.1], 10))
    drifting = ratio_interval(
        8 + np.tile([0.1, -0.1], 20) + np.linspace(-4, 4, 40),
        2 + np.tile([0.1, 0.1, -0.1, -0.1], 10) + np.linspace(-1, 1, 40),
    )
    assert drifting[1] - drifting[0] < 1.5 * (steady[1] - steady[0])


def test_without_a_visible_gradient_there_is_no_upper_end():
    rng = np.random.default_rng(0)
    low, high = ratio_interval(rng.normal(8, 0.1, 50), rng.normal(0, 1, 50))
    assert high == math.inf
    assert 8 / 0.6 < low < 8 / 0.1  # the mean of 50 is known to 0.14


def test_without_visible_noise_the_lower_end_is_0():
    rng = np.random.default_rng(0)
    low, high = ratio_interval(rng.normal(0, 1, 50), rng.normal(8, 0.1, 50))
    assert low == 0
    assert 0 < high < 0.1
    assert ratio_interval(rng.normal(0, 1, 50), rng.normal(0, 1, 50)) == (0.0, math.inf)


def test_estimates_of_one_update_may_be_arrays():
    found = estimate(np.array([2.0, 3.0]), np.array([1.0, 1.0]), 4, 2)
    assert isinstance(found, NoiseEstimate)
    assert found.trace.tolist() == [8.0, 16.0]
