"""The largest batch that XLA's own numbers allow, against brute force."""

import random

import pytest

from kbatch.memory._prober import TOO_LARGE, ModelFacts
from kbatch.memory._search import compiled_size

GB = 10**9


@pytest.mark.parametrize("seed", range(200))
def test_it_equals_brute_force_on_aligned_convex_needs(seed):
    rng = random.Random(seed)
    static, slope = rng.randrange(10**6, GB // 2), int(10 ** rng.uniform(5.2, 8))
    bend, steeper = rng.randrange(1, 2000), rng.uniform(1, 1.5)
    calls = []

    def compiled_bytes(size):
        calls.append(size)
        need = static + max(slope * size, slope * steeper * size - slope * (steeper - 1) * bend)
        return -(-int(need) // 64) * 64

    facts = ModelFacts(4 * GB, "", static, 0, 0, 4 * GB - static)
    found = compiled_size(compiled_bytes, facts, 10**6)
    assert len(calls) <= 6
    assert compiled_bytes(found.batch_size + 2) > 4 * GB
    assert found.batch_size <= 1 or compiled_bytes(found.batch_size - 1) <= 4 * GB


def test_a_ceiling_is_kept():
    facts = ModelFacts(4 * GB, "", 0, 0, 0, 4 * GB)
    assert compiled_size(lambda size: 1000 * size, facts, 50).batch_size == 50
    assert compiled_size(lambda size: 1000 * size, facts, 1).batch_size == 1


@pytest.mark.parametrize("most", [3, 7, 15])
def test_what_cannot_even_be_compiled_is_halved(most):
    facts = ModelFacts(4 * GB, "", 0, 0, 0, 4 * GB)
    found = compiled_size(lambda size: TOO_LARGE if size > most else size * GB // 10, facts, 1000)
    assert found.batch_size == most


def test_nothing_fits():
    found = compiled_size(lambda size: 5 * GB + size, ModelFacts(4 * GB, "", 0, 0, 0, 4 * GB), 1000)
    assert found.batch_size == 2  # the probes after it go down to 1
