"""Where confirmations begin: few of them may fail, since a failure costs a process and a wait."""

import pytest

from kbatch.memory._max_batch import Probe, SearchResult
from kbatch.memory._search import any_size, first_confirmed, power_of_two

USABLE = 950


@pytest.mark.parametrize(
    ("passed", "peak", "failing", "allowed", "first"),
    [
        (100, 900, None, any_size, 100),  # far enough from everything
        (100, 900, 104, any_size, 93),  # a tenth below what failed
        (100, 900, 200, any_size, 100),
        (100, 960, None, any_size, 95),  # it took more than a confirmation has
        (100, 960, 102, any_size, 91),
        (64, 900, 128, power_of_two, 64),
        (64, 960, None, power_of_two, 64),  # half of it would be too far down
        (1, 960, 2, any_size, 1),
    ],
)
def test_what_is_too_near_is_not_tried(passed, peak, failing, allowed, first):
    probes = [Probe(passed, "passed", peak, 1.0)] + (
        [] if failing is None else [Probe(failing, "out_of_memory", 0, 1.0)]
    )
    assert first_confirmed(SearchResult(passed, failing, tuple(probes)), USABLE, allowed) == first
