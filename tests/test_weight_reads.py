"""Recomputed operations read the weights before the optimizer updates them."""

from contextlib import contextmanager

import forked
import keras
import numpy as np
import pytest
import recompute_models
import tensorflow as tf
from graph_reads import freed
from recompute_plans import compiled, cut

from kbatch import recompute

pytestmark = pytest.mark.usefixtures("own_policy")


@contextmanager
def sums_and_products_as_written():
    """Keep TensorFlow's graph optimizer, but not its rewrites that round otherwise."""
    rounding = ("arithmetic_optimization", "remapping", "constant_folding")
    tf.config.optimizer.set_experimental_options(dict.fromkeys(rounding, False))
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options(dict.fromkeys(rounding, True))


def retraced(build, times):
    """What a plan changes in any variable at most, and the reads that its last trace sets free.

    Two steps of a fresh trace are trained, as often as `times` says. The reads are looked for in
    the last of them, with the whole graph optimizer.
    """
    model, data = compiled(build, optimizer=keras.optimizers.SGD(0.5))
    model.optimizer.build(model.trainable_variables)
    start = [np.array(v) for v in [*model.variables, *model.optimizer.variables]]

    def step():
        for variable, value in zip(
            [*model.variables, *model.optimizer.variables], start, strict=True
        ):
            variable.assign(value)
        model.train_function = None  # a fresh trace, in which another order may be lost
        for _ in range(2):
            model.train_on_batch(*data)
        return [np.array(v) for v in [*model.variables, *model.optimizer.variables]]

    with sums_and_products_as_written():
        plain = step()
        recompute.apply(model, cut(model))
        difference = max(
            float(np.abs(a - b).max())
            for _ in range(times)
            for a, b in zip(plain, step(), strict=True)
        )
    return difference, freed(lambda: model.train_on_batch(*data))


@pytest.fixture(scope="module", params=recompute_models.BUILDS, ids=lambda build: build.__name__)
def five_traces(request):
    return retraced(request.param, 5)


def test_no_trace_reads_updated_weights(five_traces):
    difference, _ = five_traces
    assert difference == 0


def test_no_read_follows_the_update_in_the_optimized_graph(five_traces):
    _, reads = five_traces
    assert reads == set()


@pytest.mark.slow
@pytest.mark.parametrize("build", recompute_models.BUILDS, ids=lambda build: build.__name__)
def test_none_of_fifty_traces_reads_updated_weights(build):
    # TensorFlow keeps megabytes of every trace for the life of a process
    with forked.ForkedWorker() as worker:
        assert worker.call(retraced, build, 50, timeout_seconds=1800) == (0, set())


class Remade(keras.layers.Layer):
    """A stack under `tf.recompute_grad`, which reads the weights again in the backward pass."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, inputs, training=None):
        return tf.recompute_grad(lambda x: self.inner(x, training=training))(inputs)


def test_the_search_for_such_reads_finds_those_of_recompute_grad():
    inner = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization()]
    )
    model = keras.Sequential([keras.Input((8,)), Remade(inner), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    found = freed(lambda: model.train_on_batch(np.ones((4, 8)), np.ones((4, 1))))
    assert len(found) == 1, found
    assert "batch_normalization" in found.pop()
