"""The peers' procedures that the benchmark compares with: exact, or as inexact as they are."""

import random
import sys
from pathlib import Path

import pytest
from test_size_search import LIMIT, curve_of, prober

from kbatch.memory._search import Need

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from peer_finders import PEERS, bisect, searched, shrink

MANY = 1 << 24


@pytest.mark.parametrize("name", list(PEERS))
@pytest.mark.parametrize("ceiling", [1, 2, 7, 100])
def test_a_ceiling_is_never_exceeded_and_reached_where_it_fits(name, ceiling):
    log = []
    found = searched(PEERS[name](ceiling), prober(Need(((0.0, 1e6),)), log=log))
    assert max(log) <= max(ceiling, 1)
    assert found.batch_size == (ceiling if name != "double" else 1 << (ceiling.bit_length() - 1))


@pytest.mark.parametrize("seed", range(60))
def test_bisect_is_exact_and_shrink_is_within_a_tenth(seed):
    need, _ = curve_of(random.Random(seed))
    truth = need.largest(LIMIT)
    assert searched(bisect(MANY), prober(need)).batch_size == truth
    found = searched(shrink(MANY), prober(need)).batch_size
    assert found == 128 if truth >= 128 else found >= int(0.9 * truth) - 1


def test_peers_take_the_steps_of_their_sources():
    # Lightning's binsearch on a maximum of 11: 2, 4, 8, 16 (fails), then halves; accelerate's
    # int(size * 0.9) from 128.
    log = []
    searched(bisect(MANY), prober(Need(((0.0, LIMIT / 11.5),)), log=log))
    assert log == [2, 4, 8, 16, 12, 10, 11]
    log = []
    searched(shrink(MANY), prober(Need(((0.0, LIMIT / 100),)), log=log))
    assert log == [128, 115, 103, 92]
