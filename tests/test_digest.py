"""The digest of a traced model, under which answers are kept."""

import memory_models
import pytest

from kbatch import Recipe
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
