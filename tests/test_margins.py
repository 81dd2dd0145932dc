"""Margins keep a share of the limit free, in whole MiB."""

import pytest

from kbatch.memory._max_batch import MARGINS
from kbatch.runtime.device_memory import MIB


@pytest.mark.parametrize("mebibytes", [4, 10, 33, 34, 400, 80_000])
def test_what_is_kept_free_is_a_share_and_at_least_a_mebibyte(mebibytes):
    usable = MARGINS.usable(mebibytes << 20)
    assert usable % MIB == 0
    assert (mebibytes << 20) - usable >= MIB
    share = (1 - MARGINS.kept_free) * (mebibytes << 20)
    assert share - MIB < usable <= share or usable == (mebibytes - 1) << 20
