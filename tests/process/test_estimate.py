"""What traces tell before a step runs: bytes by part, digests, and methods of training."""

import memory_models
import numpy as np
import pytest

import kbatch
from kbatch import Recipe, Space, find_max_batch, max_batches
from kbatch.memory._micro_batch import fitted
from kbatch.memory._prober import Prober
from kbatch.memory._workload import Workload, sample_of
from kbatch.model_spec import ModelSpec

pytestmark = pytest.mark.usefixtures("own_cache", "forked_workers", "no_worker_is_left")


RECIPE = Recipe(optimizer="sgd", learning_rate=0.1)


def digest(build, x, recipe, loss=None):
    with Prober(Workload(ModelSpec(build, loss), sample_of(*x)[0], recipe), 200 << 20) as prober:
        return prober.digest()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "shape", "recipe"),
    [
        (memory_models.changing, (6, 4), Recipe(policy="mixed_float16", jit_compile=True)),
        (memory_models.deep, (32, 32, 3), Recipe(recompute="minimal")),
        (
            memory_models.normed,
            (24, 24, 3),
            Recipe(64, micro_batch_size=16, augmentation="flip_shift"),
        ),
    ],
)
def test_the_same_model_has_the_same_digest_in_every_process(build, shape, recipe):
    assert (
        digest(build, (shape,), recipe)
        == digest(build, (shape,), recipe)
        != digest(memory_models.uncompiled, ((12,),), RECIPE, "mse")
    )


def test_python_that_no_trace_shows_has_another_digest_each_time():
    import tensorflow as tf

    from kbatch.runtime.trace import digest_of as of_graph

    def traced(function):
        return tf.function(function).get_concrete_function(tf.TensorSpec((None, 3))).graph

    assert (
        of_graph(traced(lambda x: x + 1))
        == of_graph(traced(lambda y: y + 1))
        != of_graph(traced(lambda x: x + 2))
    )
    seen = traced(lambda x: tf.py_function(lambda y: y, [x], tf.float32))
    assert of_graph(seen) != of_graph(seen)


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
