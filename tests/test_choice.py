"""The final choice: one lucky score does not win against several neighbours' scores."""

import keras_tuner
import numpy as np
import pytest

from kbatch.search import choice
from kbatch.search.observation import Observation


@pytest.fixture
def space():
    hp = keras_tuner.HyperParameters()
    hp.Float("x", 0.0, 1.0)
    return hp.space


def at(x, score):
    return Observation({"x": x}, score=score)


def test_a_recipe_alone_keeps_its_score(space):
    assert choice.estimates(space, [at(0.5, 0.3)]) == pytest.approx([0.3])
    far = choice.estimates(space, [at(0.0, 0.1), at(1.0, 0.3)], reach=0.05)
    assert far == pytest.approx([0.1, 0.3], abs=1e-6)


def test_a_lucky_score_among_poor_ones_does_not_win(space):
    lucky = [at(0.1, 0.0), at(0.14, 0.5), at(0.18, 0.0)]
    good = [at(0.8, 0.4), at(0.84, 0.45), at(0.88, 0.4)]
    order = choice.ranking(space, lucky + good)
    assert set(order[:3]) == {3, 4, 5}
    assert sorted(order) == list(range(6))


def test_the_choice_among_noisy_scores_beats_the_highest(space):
    lost = {"highest": 0.0, "choice": 0.0}
    for seed in range(200):
        random = np.random.default_rng(seed)
        x = random.uniform(0, 1, 12)
        truth = 1 - (x - 0.5) ** 2 * 4
        scores = truth + random.normal(0, 0.4, 12)
        known = [at(float(one), float(score)) for one, score in zip(x, scores, strict=True)]
        lost["highest"] += truth.max() - truth[np.argmax(scores)]
        lost["choice"] += truth.max() - truth[choice.ranking(space, known)[0]]
    assert lost["choice"] < 0.7 * lost["highest"]


def test_nothing_is_ranked_without_observations(space):
    assert choice.ranking(space, []) == []
