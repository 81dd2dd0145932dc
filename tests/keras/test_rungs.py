"""Who goes on at a rung: the first four, then the best half or third."""

import math

import numpy as np
import pytest

from kbatch.outcome import marks
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
    assert not rungs.Standing(((0.28,),), False, 0.07)(0, 0.2)
    assert rungs.Standing(((0.28,),), True, 0.07)(0, 0.2)


def test_later_trials_are_stopped_at_a_ninth_if_clearly_behind():
    near, clear = ((0.25, 0.25),) * 5, ((0.28, 0.28),) * 5
    assert rungs.Standing(near, False, 0.07)(0, 0.2)
    assert not rungs.Standing(clear, False, 0.07)(0, 0.2)
    # at a third ranks decide, however close they are, and where the margin is unknown
    assert not rungs.Standing(near, False, 0.07)(1, 0.2)
    assert not rungs.Standing(near, False)(0, 0.2)


def held(curve):
    return curve[-1][1]


def test_a_rung_is_judged_at_the_first_measurement_past_its_mark():
    curve = [(seconds + 0.01, number / 10) for number, seconds in enumerate(marks(9.0), 1)]
    assert rungs.values_at_rungs(curve, 9.0, held) == (0.4, 0.7)
    assert rungs.values_at_rungs(curve[:6], 9.0, held) == (0.4,)
    assert rungs.values_at_rungs(curve[:3], 9.0, held) == ()
    slow = [(2.0, 0.5), (5.0, 0.6)]  # one measurement past both marks
    assert rungs.values_at_rungs(slow, 9.0, held) == (0.5, 0.6)
    assert rungs.values_at_rungs([(4.0, 0.5)], 9.0, held) == (0.5, 0.5)


def test_each_rung_is_asked_once_and_a_no_ends_the_questions():
    asked = []
    questions = rungs.Questions(9.0, held, lambda rung, value: not asked.append((rung, value)))
    curve = [(seconds, number / 10) for number, seconds in enumerate(marks(9.0), 1)]
    assert all(questions(curve[:end]) for end in range(1, 13))
    assert asked == [(0, 0.4), (1, 0.7)]
    asked.clear()
    refusing = rungs.Questions(9.0, held, lambda rung, value: bool(asked.append((rung, value))))
    assert not refusing([(4.0, 0.5)])
    assert asked == [(0, 0.5)]


def test_rungs_are_a_ninth_and_a_third_of_the_horizon():
    shares = [marks(1.0)[mark - 1] for mark in rungs.RUNG_MARKS]
    assert shares == pytest.approx([1 / 9, 1 / 3], abs=0.01)


def test_half_go_on_at_the_first_rung_and_a_third_at_the_second():
    standing = rungs.Standing(tuple((value, value) for value in (0.1, 0.2, 0.3, 0.4)), False)
    assert [standing(0, value) for value in (0.15, 0.25, 0.35)] == [False, True, True]
    assert [standing(1, value) for value in (0.15, 0.25, 0.35)] == [False, False, True]
    assert rungs.Standing(standing.others, True)(1, 0.0)
