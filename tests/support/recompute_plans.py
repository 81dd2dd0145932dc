"""Compiled models and plans of about equal segments, for the tests of recompute."""

import contextlib
import itertools
from unittest import mock

import keras
import pytest
import recompute_models

from kbatch import recompute
from kbatch.recompute import _measure
from kbatch.recompute._exactness import CutPoints, check_repeatable
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._plan import Plan, PlannedSegment


def slow(build):
    return pytest.param(build, marks=pytest.mark.slow)


def cut(model, pieces=4):
    """A plan of so many segments of about as many operations, all but the last recomputed."""
    graph = OpGraph(model)
    nodes, allowed = graph.nodes, CutPoints(graph, *check_repeatable(graph)).positions
    cuts = sorted(
        {
            min(allowed, key=lambda position: abs(position - part * len(nodes) / pieces))
            for part in range(pieces + 1)
        }
    )
    segments = [
        PlannedSegment(nodes[a].name, nodes[b - 1].name, b - a, b != len(nodes))
        for a, b in itertools.pairwise(cuts)
    ]
    return Plan("test", tuple(segments), 16, 0, 0, 0.0)


@contextlib.contextmanager
def plain_trained_once():
    """Train the plain side of `verify` once for all plans of one model and batch."""
    train, plain = _measure._train, []

    def once(model, *rest):
        if recompute.applied(model) is not None:
            return train(model, *rest)
        if not plain:
            plain.append(train(model, *rest))
        return plain[0]

    with mock.patch.object(_measure, "_train", once):
        yield


def compiled(build, policy="float32", optimizer=None, **arguments):
    """A model and its batch; its optimizer has slots, and is traced faster than Adam."""
    keras.config.set_floatx("float64" if policy == "float64" else "float32")
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(3)
    model, data = build()
    model.compile(
        optimizer or keras.optimizers.SGD(0.1, momentum=0.9),
        recompute_models.losses(model),
        **{"jit_compile": False, **arguments},
    )
    return model, data


def sequence(*layers, shape=(6, 8)):
    return keras.Sequential(
        [keras.Input(shape), *layers, keras.layers.Dense(4), keras.layers.Dense(4)]
    )
