"""A batch of examples whose size is asked before a model is trained on it."""

import numpy as np
import pytest

from kbatch.errors import RecomputeError
from kbatch.recompute._restored import batch_size_of


@pytest.mark.parametrize(
    "x", [np.zeros((5, 2)), {"a": np.zeros((5, 2)), "b": np.zeros(5)}, [None, np.zeros((5, 1))]]
)
def test_a_batch_has_as_many_examples_as_its_first_axis(x):
    assert batch_size_of(x) == 5


@pytest.mark.parametrize(
    "x", [[], np.zeros((0, 3)), np.float32(1.0), {"a": np.zeros((5, 2)), "b": np.zeros((0,))}]
)
def test_a_batch_without_examples_is_refused(x):
    with pytest.raises(RecomputeError, match="at least one example"):
        batch_size_of(x)
