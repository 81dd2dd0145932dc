import math

import numpy as np
import pytest

import kbatch
from kbatch import outcome

HORIZON = 12.0


def rising(rng, points=12, noise=0.02, speed=1.0):
    times = np.asarray(outcome.marks(HORIZON))[:points]
    return [
        (float(t), float(0.5 + 0.4 * (1 - math.exp(-speed * t / 3)) + rng.normal(0, noise)))
        for t in times
    ]


@pytest.fixture(params=range(20))
def curve(request):
    return rising(np.random.default_rng(request.param))


def test_marks_are_twelve_dense_early_and_end_at_the_horizon():
    marks = outcome.marks(HORIZON)
    assert len(marks) == 12
    assert marks[-1] == HORIZON
    assert marks[0] == pytest.approx(HORIZON / 144)
    assert np.all(np.diff(marks, n=2) > 0)


def test_held_is_the_best_minimum_of_three_by_brute_force(curve):
    best = max(min(value for _, value in curve[i : i + 3]) for i in range(len(curve) - 2))
    held = outcome.held(curve)
    assert held.value == best
    assert curve[held.index][1] == best


@pytest.mark.parametrize("target", [None, 0.7])
def test_stopping_early_never_helps(curve, target):
    scores = [kbatch.score(curve[:n], HORIZON, 0.5, target) for n in range(len(curve) + 1)]
    assert scores == sorted(scores)


def test_swinging_never_helps(curve):
    swung = [(t, value + (0.1 if i % 2 else -0.1)) for i, (t, value) in enumerate(curve)]
    assert kbatch.score(swung, HORIZON, 0.5) <= kbatch.score(curve, HORIZON, 0.5)
    spike = [*curve[:5], (curve[5][0], 1.0), *curve[6:]]
    assert kbatch.score(spike, HORIZON, 0.5) <= kbatch.score(
        [*curve[:5], (curve[5][0], max(v for _, v in curve[3:8])), *curve[6:]], HORIZON, 0.5
    )


def test_half_the_speed_to_a_target_is_half_the_score(curve):
    slower = [(2 * t, value) for t, value in curve]
    fast, slow = (kbatch.score(c, 4 * HORIZON, 0.5, target=0.6) for c in (curve, slower))
    assert fast > 0
    assert slow == pytest.approx(fast / 2)


def test_measuring_more_often_changes_the_score_little():
    ratios = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        coarse = rising(rng, noise=0.02)
        fine = sorted(coarse + [(t + 0.03, v + float(rng.normal(0, 0.02))) for t, v in coarse])
        ratios.append(kbatch.score(fine, HORIZON, 0.5) - kbatch.score(coarse, HORIZON, 0.5))
    assert abs(np.mean(ratios)) < 0.02 / HORIZON


def test_chance_in_float32_scores_zero():
    share = 2 / 3
    curve = [(1, float(np.float32(share)))] * 3
    assert curve[0][1] > share
    assert outcome.score(curve, 3, share) == 0
    assert outcome.score([(1, 0.667)] * 3, 3, share) > 0


def test_a_chance_level_model_scores_zero():
    rng = np.random.default_rng(0)
    assert kbatch.score([(t, 0.5) for t in outcome.marks(HORIZON)], HORIZON, 0.5) == 0.0
    assert (
        kbatch.score([(t, 0.5 - abs(rng.normal())) for t in outcome.marks(HORIZON)], HORIZON, 0.5)
        == 0.0
    )


@pytest.mark.parametrize("points", [0, 1, 2])
def test_fewer_than_three_measurements_score_zero(points):
    assert kbatch.score([(t, 0.9) for t in range(points)], HORIZON, 0.5) == 0.0


def test_nan_scores_zero_and_is_never_held():
    curve = [(1, 0.8), (2, 0.8), (3, 0.8), (4, math.nan), (5, 0.9), (6, 0.9)]
    assert kbatch.score(curve, HORIZON, 0.5) == 0.0
    assert outcome.held(curve).value == 0.8


def test_a_minimized_metric_mirrors_a_maximized_one(curve):
    mirrored = [(t, -value) for t, value in curve]
    for target in (None, 0.7):
        there = None if target is None else -target
        assert kbatch.score(mirrored, HORIZON, -0.5, there, direction="min") == pytest.approx(
            kbatch.score(curve, HORIZON, 0.5, target)
        )


def test_a_target_caps_the_value_and_divides_by_its_time():
    curve = [(1, 0.5), (2, 0.7), (3, 0.8), (4, 0.9), (5, 0.95)]
    assert kbatch.score(curve, HORIZON, 0.5, target=0.7) == pytest.approx(0.2 / 4)
    assert kbatch.score(curve, HORIZON, 0.5, target=0.99) == pytest.approx((0.8 - 0.5) / HORIZON)


@pytest.mark.parametrize("horizon", [0, -1, math.nan, math.inf])
def test_a_horizon_must_be_above_zero(horizon):
    with pytest.raises(ValueError, match="horizon"):
        kbatch.score([(1, 0.5)], horizon, 0.5)


def test_times_must_not_fall():
    with pytest.raises(ValueError, match="must not fall"):
        kbatch.score([(2, 0.5), (1, 0.6)], HORIZON, 0.5)


@pytest.mark.parametrize("direction", ["max", "min"])
def test_a_gain_is_the_best_mean_of_three_measurements(direction):
    random = np.random.default_rng(3)
    sign = 1 if direction == "max" else -1
    for _ in range(50):
        values = random.uniform(0, 1, random.integers(3, 13))
        curve = list(enumerate(values.tolist(), 1))
        means = [sign * (np.mean(values[at : at + 3]) - 0.5) for at in range(len(values) - 2)]
        found = outcome.gain(curve, 0.5, direction)
        assert found == pytest.approx(max(0, *means))
        # the worst of three is no more than their mean
        assert outcome.score(curve, 20.0, 0.5, direction=direction) * 20 <= found + 1e-9


def test_a_gain_is_0_for_what_tells_nothing():
    assert outcome.gain([(1, 0.9), (2, 0.9)], 0.5) == 0
    assert outcome.gain([(1, 0.9), (2, 0.9), (3, float("nan")), (4, 0.9)], 0.5) == 0
    assert outcome.gain([(1, 0.4), (2, 0.3), (3, 0.2)], 0.5) == 0
    assert outcome.gain([], 0.5) == 0
