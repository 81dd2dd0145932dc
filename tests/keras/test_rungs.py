"""Who goes on at the rung: the first four, then the best third."""

import math

import numpy as np
import pytest

from kbatch.outcome import marks
from kbatch.results.words import RUNG
from kbatch.search import rungs


@pytest.mark.parametrize("kept", [2, 3])
@pytest.mark.parametrize("count", range(1, 30))
def test_the_best_share_goes_on(count, kept):
    values = list(np.random.default_rng(count).permutation(count) / count)
    gone = [
        rungs.goes_on(value, values[:place] + values[place + 1 :], kept)
        for place, value in enumerate(values)
    ]
    assert sum(gone) == (count if count <= 4 else math.ceil(count / kept))
    assert min(v for v, g in zip(values, gone, strict=True) if g) > max(
        [v for v, g in zip(values, gone, strict=True) if not g], default=-1
    )


def test_equal_trials_go_on_together():
    assert all(rungs.goes_on(0.2, [0.2] * others, 3) for others in range(10))


def test_one_of_the_first_that_is_clearly_worse_is_stopped():
    assert rungs.goes_on(0.2, [0.26], 2, margin=0.07)
    assert not rungs.goes_on(0.2, [0.28], 2, margin=0.07)
    assert rungs.goes_on(0.2, [], 2, margin=0.07)
    assert not rungs.Standing((0.28,), False, 0.07)(0.2)
    assert rungs.Standing((0.28,), True, 0.07)(0.2)


@pytest.mark.parametrize("margin", [0.07, math.inf])
def test_of_later_trials_ranks_decide_however_close(margin):
    assert not rungs.Standing((0.21,) * 5, False, margin)(0.2)


def held(curve):
    return curve[-1][1]


def test_the_rung_is_judged_at_the_first_measurement_past_it():
    curve = [(seconds + 0.01, number / 10) for number, seconds in enumerate(marks(9.0), 1)]
    assert rungs.gain_at_rung(curve, 9.0, held) == 0.7
    assert rungs.gain_at_rung(curve[:6], 9.0, held) is None
    assert rungs.gain_at_rung([(2.0, 0.5), (5.0, 0.6)], 9.0, held) == 0.6
    assert rungs.gain_at_rung([], 9.0, held) is None


@pytest.mark.parametrize("answer", [True, False])
def test_the_question_is_asked_once(answer):
    asked = []
    question = rungs.Question(9.0, held, lambda gained: asked.append(gained) or answer)
    curve = [(seconds, number / 10) for number, seconds in enumerate(marks(9.0), 1)]
    answers = [question(curve[:end]) for end in range(1, 13)]
    assert answers == [True] * 6 + [answer] + [True] * 5
    assert asked == [0.7]


def test_the_rung_is_a_third_of_the_horizon():
    assert marks(1.0)[rungs.RUNG_MARK - 1] == pytest.approx(RUNG, abs=0.01)


def test_a_third_goes_on():
    standing = rungs.Standing((0.1, 0.2, 0.3, 0.4), False)
    assert [standing(value) for value in (0.15, 0.25, 0.35)] == [False, False, True]
    assert rungs.Standing(standing.others, True)(0.0)
