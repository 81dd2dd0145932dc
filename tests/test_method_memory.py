"""The memory of SAM and proximal training: found by the finder, and held in the passes' loop."""

import memory_models
import pytest

from kbatch import Recipe, Space, find_max_batch, max_batches
from kbatch.memory._micro_batch import fitted
from kbatch.memory._prober import Prober
from kbatch.memory._workload import Workload, sample_of
from kbatch.model_spec import ModelSpec

pytestmark = pytest.mark.usefixtures("own_cache", "forked_workers", "no_worker_is_left")

LIMIT = 120 << 20


def prober_of(recipe):
    return Prober(Workload(ModelSpec(memory_models.dense), sample_of((16,))[0], recipe), LIMIT)


@pytest.mark.slow
def test_the_largest_micro_batch_of_sam_trains():
    recipe = Recipe(64, "sgd", 0.1, training="sam:0.05", micro_batch_size=16)
    found = find_max_batch(
        memory_models.dense, (16,), memory_limit=LIMIT, recipe=recipe, confirmed_steps=3
    )
    assert found.recipe.accumulation_steps == 4
    assert 0.6 * found.batch_size < found.predicted < 1.5 * found.batch_size
    with prober_of(recipe) as prober:
        assert prober.train(found.batch_size, 3).passed  # four times as many examples a step
        assert prober.probe(2 * found.batch_size).ended == "out_of_memory"


@pytest.mark.slow
def test_a_table_bounds_the_passes_of_a_method():
    space = Space(
        batch_size=(64,), policy="float32", optimizer="sgd", training=("plain", "sam:0.05"),
        jit_compile=False,
    )  # fmt: skip
    table = max_batches(memory_models.dense, (16,), space=space, memory_limit=LIMIT)
    plain, sam = table
    assert 0 < sam.accumulated_batch_size <= sam.batch_size <= plain.batch_size
    batch_size = 8 * sam.accumulated_batch_size
    recipe = fitted(Recipe(batch_size, "sgd", 0.1, training="sam:0.05"), table)
    assert recipe.accumulation_steps == 8
    with prober_of(recipe) as prober:
        assert prober.train(recipe.micro_batch_size, 3).passed
