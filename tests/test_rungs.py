"""Who goes on at a rung: the best third, and nobody is asked to lead nobody."""

import numpy as np
import pytest

from kbatch.scoring import marks
from kbatch.search import rungs


@pytest.mark.parametrize("count", range(1, 30))
def test_the_best_third_goes_on(count):
    values = list(np.random.default_rng(count).permutation(count) / count)
    gone = [
        rungs.goes_on(value, values[:place] + values[place + 1 :])
        for place, value in enumerate(values)
    ]
    assert sum(gone) == max(count // 3, 1)
    assert min(v for v, g in zip(values, gone, strict=True) if g) > max(
        [v for v, g in zip(values, gone, strict=True) if not g], default=-1
    )


def test_equal_trials_go_on_together():
    assert all(rungs.goes_on(0.2, [0.2] * others) for others in range(10))


def test_rungs_are_a_ninth_and_a_third_of_the_horizon():
    shares = [marks(1.0)[mark - 1] for mark in rungs.RUNG_MARKS]
    assert shares == pytest.approx([1 / 9, 1 / 3], abs=0.01)
