"""The budget of a search in words."""

import numpy as np
import pytest

from kbatch.errors import SearchError
from kbatch.training.arguments import seconds_of


def test_seconds_of_a_budget():
    assert [seconds_of(text) for text in ("45s", "2 h", "0.5min", 7, np.float32(3))] == [
        *(45, 7200, 30, 7, 3)
    ]


def test_a_word_that_is_no_time_is_refused():
    with pytest.raises(SearchError, match=r"in s, min or h, or 'auto'. Received: 'atuo'"):
        seconds_of("atuo", "auto")
