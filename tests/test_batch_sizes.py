"""Batch sizes as arguments: checked, and bounded."""

import numpy as np
import pytest

from kbatch.errors import MemoryLimitError
from kbatch.memory._find import lower_size
from kbatch.memory._workload import check_size


def test_whole_numbers_of_any_kind_are_taken():
    assert [check_size("ceiling", size) for size in (None, 1, np.int64(8))] == [None, 1, 8]


@pytest.mark.parametrize("size", [0, -1, 1.5, "8", True])
def test_other_sizes_are_refused_by_name(size):
    with pytest.raises(MemoryLimitError, match="`ceiling` must be a whole number of at least 1"):
        check_size("ceiling", size)


def test_a_missing_bound_bounds_nothing():
    assert [lower_size(3, 5), lower_size(None, 5), lower_size(3, None), lower_size(None, None)] == [
        3,
        5,
        3,
        None,
    ]
