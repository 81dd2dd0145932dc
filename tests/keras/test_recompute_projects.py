"""Models in the style of keras.io's examples: every plan is exact to the bit or refused."""

import itertools

import keras
import numpy as np
import project_models
import pytest
from recompute_plans import plain_trained_once

from kbatch import recompute
from kbatch.errors import RecomputeError
from kbatch.recompute._exactness import CutPoints, check_repeatable
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._plan import Plan, PlannedSegment


@pytest.fixture(autouse=True)
def in_double_precision():
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(3)
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(before)


def every(model):
    """All allowed cuts, with all segments but the last recomputed, trained or not."""
    graph = OpGraph(model)
    nodes, positions = graph.nodes, CutPoints(graph, *check_repeatable(graph)).positions
    segments = (
        PlannedSegment(nodes[a].name, nodes[b - 1].name, b - a, b != len(nodes))
        for a, b in itertools.pairwise(positions)
    )
    return Plan("every", tuple(segments), 8, 0, 0, 0.0)


def is_exact(model, plan, data):
    report = recompute.verify(model, plan, *data)
    assert report.exact, f"{report}\n{plan}"
    return plan.recomputes


def is_what_it_says(model, plan, data):
    """Exact, or equal to rounding where the plan says so."""
    report = recompute.verify(model, plan, *data)
    apart = max(report.loss, report.gradients, report.weights, report.state)
    assert report.exact or (plan.reordered and apart <= 1e-12), f"{report}\n{plan}"


@pytest.mark.parametrize(
    "build",
    [project_models.vae, project_models.triplet, project_models.heads],
    ids=lambda build: build.__name__,
)
def test_what_once_was_exact_but_for_the_last_digit_is_exact(build):
    model, data = build()
    assert not recompute.plan(model, 8, "none").recomputes
    with plain_trained_once():
        assert all(
            is_exact(model, plan, data)
            for plan in (recompute.plan(model, 8, "stages"), every(model))
            if plan.recomputes
        )


def test_a_segment_of_which_nothing_floating_leaves_is_exact():
    model, data = project_models.bert()
    plan = every(model)
    assert any(
        segment.recompute and segment.first.startswith("not_equal") for segment in plan.segments
    )
    assert is_exact(model, plan, data)


@pytest.mark.slow
def test_a_model_in_time_distributed_is_cut_inside_and_exact():
    model, data = project_models.video()
    plain, plan = recompute.plan(model, 4, "none"), recompute.plan(model, 4)
    assert any(
        "time_distributed" in segment.first and "/3/" in segment.first for segment in plan.segments
    )
    assert plan.peak_bytes < 0.5 * plain.peak_bytes
    assert is_exact(model, plan, data)


@pytest.mark.slow
@pytest.mark.parametrize("build", project_models.BUILDS, ids=lambda build: build.__name__)
def test_every_plan_of_every_project_is_what_it_says(build):
    model, data = build()
    size = len(keras.tree.flatten(data[0])[0])
    plans = (
        [recompute.plan(model, size, strategy) for strategy in ("minimal", "sqrt", "stages")]
        + recompute.front(model, size)
        + [every(model)]
    )
    with plain_trained_once():
        for plan in {tuple(plan.stretches()): plan for plan in plans}.values():
            is_what_it_says(model, plan, data)
    try:
        by_hand = recompute.plan(
            model, size, "manual", layers=[node.name for node in OpGraph(model).nodes]
        )
    except RecomputeError as refused:
        assert "branches" in str(refused)
    else:
        is_what_it_says(model, by_hand, data)


class NoisyCell(keras.layers.Layer):
    """Draws another mask in each step of time, inside of the loop."""

    def __init__(self, units, **arguments):
        super().__init__(**arguments)
        self.state_size = units
        self.dense, self.dropout = keras.layers.Dense(units, "tanh"), keras.layers.Dropout(0.5)

    def build(self, shape):
        self.dense.build((*shape[:-1], shape[-1] + self.state_size))

    def call(self, inputs, states, training=None):
        new = self.dropout(
            self.dense(keras.ops.concatenate([inputs, states[0]], -1)), training=training
        )
        return new, [new]


def test_random_numbers_drawn_in_a_loop_are_refused():
    inputs = keras.Input((6, 4))
    x = keras.layers.Masking()(keras.layers.Dense(4)(inputs))
    x = keras.layers.RNN(NoisyCell(5), return_sequences=True, name="noisy")(x)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LSTM(4)(x)))
    model.compile("sgd", "mse", jit_compile=False)
    plan = every_node(model)
    for ask in (
        lambda: recompute.apply(model, plan),
        lambda: recompute.verify(model, plan, np.ones((2, 6, 4)), np.ones((2, 1))),
    ):
        with pytest.raises(
            RecomputeError, match=r"in each turn of a loop \(dropout.*Draw them before the loop"
        ):
            ask()
    assert recompute.applied(model) is None


def every_node(model):
    nodes = OpGraph(model).nodes
    return Plan(
        "every",
        tuple(PlannedSegment(node.name, node.name, 1, node is not nodes[-1]) for node in nodes),
        8,
        0,
        0,
        0.0,
    )


def tied(regularizer=None):
    """One layer eight times in a row, with layers before and after it."""
    inputs = x = keras.Input((6,))
    block = keras.layers.Dense(6, "tanh", kernel_regularizer=regularizer, name="tied")
    for _ in range(8):
        x = block(x)
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(6, "tanh")(x)))
    model.compile("sgd", "mse", jit_compile=False)
    rng = np.random.default_rng(0)
    return model, (rng.normal(size=(8, 6)), rng.normal(size=(8, 2)))


@pytest.mark.parametrize("cuts", [(1, 3, 4, 7), (2, 6), (5,)], ids=str)
def test_a_layer_used_many_times_is_exact_under_every_cut(cuts):
    model, data = tied()
    nodes = OpGraph(model).nodes
    ends = [0, *cuts, len(nodes)]
    kinds = [index % 2 == 0 for index in range(len(ends) - 2)] + [False]
    segments = (
        PlannedSegment(nodes[a].name, nodes[b - 1].name, b - a, kind)
        for (a, b), kind in zip(itertools.pairwise(ends), kinds, strict=True)
    )
    assert is_exact(model, Plan("test", tuple(segments), 8, 0, 0, 0.0), data)


def test_a_reused_layer_with_a_regularizer_is_refused():
    model, _ = tied("l2")
    with pytest.raises(
        RecomputeError, match=r"branches that use the weight 'tied/kernel'.*Do not cut after them"
    ):
        recompute.apply(model, every_node(model))
    assert CutPoints(OpGraph(model)).positions == [0, 10]
