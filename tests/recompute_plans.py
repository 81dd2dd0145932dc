"""Compiled models and plans of about equal segments, for the tests of recompute."""

import itertools

import keras
import pytest
import recompute_models

from kbatch.recompute import _repeatable
from kbatch.recompute._cut_points import CutPoints
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._plan import Plan, PlannedSegment


def slow(build):
    return pytest.param(build, marks=pytest.mark.slow)


def cut(model, pieces=4):
    """A plan of so many segments of about as many operations, all but the last recomputed."""
    graph = OpGraph(model)
    nodes, allowed = graph.nodes, CutPoints(graph, _repeatable.check(graph)).positions
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


def compiled(build, policy="float32", optimizer=None, **arguments):
    keras.config.set_floatx("float64" if policy == "float64" else "float32")
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(3)
    model, data = build()
    model.compile(
        optimizer or keras.optimizers.Adam(0.01),
        recompute_models.losses(model),
        **{"jit_compile": False, **arguments},
    )
    return model, data


def sequence(*layers, shape=(6, 8)):
    return keras.Sequential(
        [keras.Input(shape), *layers, keras.layers.Dense(4), keras.layers.Dense(4)]
    )
