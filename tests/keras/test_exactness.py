"""Where models may be cut, and which cannot be run twice: recomputing changes no gradient."""

import itertools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from recompute_plans import cut, sequence

from kbatch import recompute
from kbatch.errors import RecomputeError
from kbatch.recompute._exactness import CutPoints
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._plan import Plan, PlannedSegment

pytestmark = pytest.mark.usefixtures("own_policy")


WIDTH = 6


def drawn(seed):
    """A random model of branches and joins; some layers read their input several times."""
    rng = random.Random(seed)
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((WIDTH,))
    values = [layers.Dense(WIDTH)(inputs)]
    for _ in range(rng.randint(6, 16)):
        some = [rng.choice(values[-4:]) for _ in range(rng.randint(2, 4))]
        make = {
            "dense": lambda some: layers.Dense(
                WIDTH, activation=rng.choice([None, "tanh", "gelu"])
            )(some[0]),
            "gelu": lambda some: layers.Activation("gelu")(some[0]),
            "batch": lambda some: layers.BatchNormalization()(some[0]),
            "layer": lambda some: layers.LayerNormalization()(some[0]),
            "add": lambda some: layers.Add()(some),
            "join": lambda some: layers.Dense(WIDTH)(layers.Concatenate()(some)),
            "multiply": lambda some: layers.Multiply()(some[:2]),
        }
        values.append(make[rng.choice(list(make))](some))
    outputs = layers.Add()(values[-2:])
    model = keras.Model(inputs, layers.Dense(3)(outputs))
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def planned(graph, cuts, rng):
    ends = [0, *sorted(cuts), len(graph.nodes)]
    nodes = graph.nodes
    segments = (
        PlannedSegment(nodes[a].name, nodes[b - 1].name, b - a, rng.random() < 0.7)
        for a, b in itertools.pairwise(ends)
    )
    return Plan("test", tuple(segments), 5, 0, 0, 0.0)


def gradients(model, seed):
    rng = np.random.default_rng(seed)
    x, y = (tf.constant(rng.normal(size=(5, width)).astype("float32")) for width in (WIDTH, 3))
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True), training=True)
    return [
        np.array(each)
        for each in tape.gradient(loss, [v.value for v in model.trainable_variables])
        if each is not None
    ]


def differing(seed, positions):
    """How many of some plans drawn with cuts at these positions change a gradient."""
    model, rng, found = drawn(seed), random.Random(seed), 0
    graph = OpGraph(model)
    plain = gradients(model, seed)
    for _ in range(3):
        allowed = positions(graph)
        recompute.apply(
            model, planned(graph, rng.sample(allowed, min(len(allowed), rng.randint(1, 5))), rng)
        )
        found += not all(map(np.array_equal, plain, gradients(model, seed)))
    return found


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 120))]
)
def test_no_plan_with_allowed_cuts_changes_a_gradient(seed):
    assert differing(seed, lambda graph: CutPoints(graph).positions[1:-1]) == 0


def test_some_plans_with_other_cuts_do(monkeypatch):
    monkeypatch.setattr(CutPoints, "check", lambda self, cuts, uncut: None)
    found = (differing(seed, lambda graph: range(1, len(graph.nodes))) for seed in range(8))
    assert any(total > 2 for total in itertools.accumulate(found))  # the first few are enough


def branches(kind):
    """A value read by two branches that join in a layer named `join`."""
    inputs = keras.Input((WIDTH,))
    x = layers.Dense(WIDTH, name="fork")(inputs)
    one, other = layers.Dense(WIDTH, name="one")(x), kind(name="other")(x)
    return keras.Model(inputs, layers.Dense(1, name="last")(layers.Add(name="join")([one, other])))


def test_three_terms_are_cut_outside_branches_two_anywhere():
    assert CutPoints(OpGraph(branches(lambda name: layers.Dense(WIDTH, name=name)))).positions == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    assert CutPoints(
        OpGraph(branches(lambda name: layers.LayerNormalization(name=name)))
    ).positions == [0, 1, 4, 5]


def test_a_reader_that_feeds_the_other_leaves_every_cut():
    inputs = keras.Input((WIDTH,))
    x = layers.Dense(WIDTH)(inputs)
    model = keras.Model(
        inputs, layers.Add()([x, layers.Dense(WIDTH)(layers.LayerNormalization()(x))])
    )
    assert CutPoints(OpGraph(model)).positions == list(range(5))


def test_a_manual_cut_between_branches_names_the_layer_to_use():
    model = branches(lambda name: layers.LayerNormalization(name=name))
    with pytest.raises(
        RecomputeError, match=r"branches that read the value of 'fork'.*Cut after 'join'"
    ):
        recompute.plan(model, 4, "manual", layers=["one"])
    assert recompute.plan(model, 4, "manual", layers=["join"]).recomputes


def test_a_plan_with_such_a_cut_is_refused_too():
    model = branches(lambda name: layers.LayerNormalization(name=name))
    with pytest.raises(RecomputeError, match="must not lie between branches"):
        recompute.apply(model, planned(OpGraph(model), [2], random.Random(0)))


class Assigning(keras.layers.Layer):
    """Writes a trainable weight in `call`, as SpectralNormalization does."""

    def build(self, shape):
        self.scale = self.add_weight(shape=())

    def call(self, inputs):
        self.scale.assign(self.scale * 0.5)
        return inputs * self.scale


class Unrepeatable(keras.layers.Layer):
    """Draws other numbers each time it is run."""

    def call(self, inputs):
        return inputs * tf.random.uniform(())


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: sequence(Assigning()), "assigns a trainable weight"),
        (
            lambda: sequence(keras.layers.SpectralNormalization(keras.layers.Dense(8))),
            "SpectralNormalization",
        ),
        (lambda: sequence(Unrepeatable()), "RandomUniform"),
        (
            lambda: keras.Sequential(
                [
                    keras.Input(batch_shape=(4, 6, 8)),
                    keras.layers.LSTM(4, stateful=True),
                    keras.layers.Dense(4),
                ]
            ),
            "stateful",
        ),
    ],
)
def test_what_cannot_be_run_twice_is_refused(build, says):
    model = build()
    for refused in (
        lambda: recompute.apply(model, cut(model, 2)),
        lambda: recompute.plan(model, 4, "manual", layers=[model.layers[-2].name]),
    ):
        with pytest.raises(RecomputeError, match=says):
            refused()
    assert "call" not in vars(model)
    recompute.apply(model, recompute.plan(model, 4, "none"))


def test_planning_refuses_what_cannot_be_run_twice_if_it_were():
    model = sequence(*(keras.layers.Dense(64, "tanh") for _ in range(8)), Unrepeatable())
    for refused in (lambda: recompute.plan(model, 64), lambda: recompute.front(model, 64)):
        with pytest.raises(RecomputeError, match="RandomUniform"):
            refused()
    model.trainable = False
    plan = recompute.plan(model, 64)
    assert not plan.recomputes
    assert recompute.front(model, 64)[-1].peak_bytes == plan.peak_bytes
    recompute.apply(model, plan)
