"""The estimate of a step's memory, compared with measured peaks."""

import memory_models
import numpy as np
import pytest

import kbatch
from kbatch import Recipe
from kbatch.memory._prober import Prober
from kbatch.memory._workload import Workload, sample_of
from kbatch.model_spec import ModelSpec

pytestmark = pytest.mark.usefixtures("own_cache", "forked_workers", "no_worker_is_left")


@pytest.mark.parametrize(
    ("build", "shape", "sizes"),
    [
        (memory_models.dense, (16,), (128, 512)),
        pytest.param(memory_models.recurrent, (50,), (256, 1024), marks=pytest.mark.slow),
    ],
)
def test_estimate_is_near_the_measured_peak_and_its_parts_add_up(build, shape, sizes):
    workload = Workload(
        ModelSpec(build),
        sample_of(
            np.zeros((8, *shape), "int32" if len(shape) == 1 else "float32"), np.zeros(8, "int32")
        )[0],
        Recipe(),
    )
    with Prober(workload, 1 << 30) as prober:
        facts, measured = prober.facts(), {size: prober.probe(size).peak_bytes for size in sizes}
    for size in sizes:
        guess = kbatch.memory.estimate(
            build, workload.sample[0], workload.sample[1], batch_size=size
        )
        assert (
            guess.total
            == guess.weights
            + guess.optimizer_slots
            + guess.gradients
            + guess.activations
            + guess.workspace
        )
        assert (guess.weights, guess.optimizer_slots) == (facts.weight_bytes, facts.slot_bytes)
        assert 0.6 * measured[size] <= guess.total <= 1.4 * measured[size], (
            build.__name__,
            size,
            guess,
            measured,
        )
        assert "activations" in str(guess)


@pytest.mark.slow
def test_the_jitted_estimate_is_what_xla_allocates():
    recipe, sample = Recipe(jit_compile=True), sample_of((16,))[0]
    guess = kbatch.memory.estimate(memory_models.dense, (16,), recipe=recipe, batch_size=256)
    with Prober(Workload(ModelSpec(memory_models.dense), sample, recipe), None) as prober:
        assert guess.total == pytest.approx(prober.compiled_bytes(256), rel=1e-6)
    assert (
        guess.total
        == guess.weights
        + guess.optimizer_slots
        + guess.gradients
        + guess.activations
        + guess.workspace
    )
    # two wide layers, of which XLA may keep one again
    assert guess.activations > 256 * 2 * memory_models.WIDTH * 4 / 2
