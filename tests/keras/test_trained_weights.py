"""Every weight that plain Keras trains is trained under a plan, whatever outer layer is frozen."""

import itertools

import keras
import numpy as np
import pytest
from keras import layers
from recompute_plans import compiled, cut, sequence, slow

from kbatch import recompute
from kbatch.errors import RecomputeError
from kbatch.recompute import _apply
from kbatch.recompute._measure import without_graph_optimizer
from kbatch.recompute._op_graph import Node, OpGraph, SignatureCache
from kbatch.recompute._plan import Plan, PlannedSegment

pytestmark = pytest.mark.usefixtures("own_policy")
SLOW = pytest.mark.slow


class Block(layers.Layer):
    """A composite layer with a residual connection."""

    def __init__(self):
        super().__init__()
        self.up, self.down = layers.Dense(16, "gelu"), layers.Dense(8)

    def build(self, shape):
        self.up.build(shape)
        self.down.build((*shape[:-1], 16))

    def call(self, inputs):
        return inputs + self.down(self.up(inputs))


class Outer(layers.Layer):
    """A composite layer of composite layers."""

    def __init__(self):
        super().__init__()
        self.blocks = [Block(), Block()]

    def build(self, shape):
        for block in self.blocks:
            block.build(shape)

    def call(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


def frozen(layer):
    """The layer, frozen as KerasHub's `Backbone.enable_lora` does."""
    for inner in layer._flatten_layers():
        inner.trainable = False
    return layer


def adapted(layer, inner):
    """Train LoRA weights of an inner layer of a frozen one."""
    frozen(layer)
    inner.trainable = True
    inner.enable_lora(2)


def heads(x):
    return layers.Dense(3)(layers.GlobalAveragePooling1D()(x))


def vectors():
    return np.random.default_rng(0).normal(size=(16, 6, 8)).astype("float32")


def composite():
    """Inner layers of composite layers, behind a trained stem."""
    blocks = [Block() for _ in range(3)]
    inputs = keras.Input((6, 8))
    x = layers.Dense(8)(inputs)
    for block in blocks:
        x = block(x)
        adapted(block, block.up)
    return keras.Model(inputs, heads(x)), vectors()


def composite_of_composites():
    """Inner layers of inner layers."""
    outer = Outer()
    inputs = keras.Input((6, 8))
    x = outer(layers.Dense(8)(inputs))
    adapted(outer, outer.blocks[1].down)
    return keras.Model(inputs, heads(layers.Dense(8, "tanh")(x))), vectors()


def one_weight():
    """One weight of a frozen layer, trained by itself."""
    dense = layers.Dense(8)
    inputs = keras.Input((6, 8))
    x = layers.Dense(8, "tanh")(dense(layers.Dense(8)(inputs)))
    frozen(dense).bias.trainable = True
    assert not dense.trainable_variables
    return keras.Model(inputs, heads(x)), vectors()


def nested_functional():
    """A layer of a nested model that is frozen."""
    inner_inputs = keras.Input((6, 8))
    dense = layers.Dense(8, "tanh")
    inner = keras.Model(inner_inputs, layers.Dense(8)(dense(inner_inputs)))
    inputs = keras.Input((6, 8))
    x = inner(layers.Dense(8)(inputs))
    adapted(inner, dense)
    return keras.Model(inputs, heads(x)), vectors()


def nested_sequential():
    """A composite layer of a nested Sequential model that is frozen."""
    block = Block()
    inner = keras.Sequential([keras.Input((6, 8)), layers.Dense(8), block])
    inputs = keras.Input((6, 8))
    x = inner(layers.Dense(8)(inputs))
    adapted(inner, block.down)
    return keras.Model(inputs, heads(x)), vectors()


def repeated_in_time():
    """A frozen model that is repeated for each step of time."""
    dense = layers.Dense(8)
    inner = keras.Sequential([keras.Input((8,)), dense, layers.Dense(8, "tanh")])
    repeated = layers.TimeDistributed(inner)
    inputs = keras.Input((6, 8))
    x = repeated(layers.Dense(8)(inputs))
    adapted(repeated, dense)
    return keras.Model(inputs, heads(x)), vectors()


def attention():
    """The query and value of attention in a trained stem."""
    inputs = keras.Input((6, 8))
    x = layers.Dense(8)(inputs)
    attend = layers.MultiHeadAttention(2, 4)
    x = layers.Add()([x, attend(x, x)])
    frozen(attend)
    for inner in (attend.query_dense, attend.value_dense):
        inner.trainable = True
        inner.enable_lora(2)
    return keras.Model(inputs, heads(layers.Dense(8, "tanh")(x))), vectors()


def embedding():
    """An embedding with LoRA, and LoRA in layers behind it."""
    embed, block = layers.Embedding(20, 8), Block()
    inputs = keras.Input((6,), dtype="int32")
    x = block(layers.Dense(8, "tanh")(embed(inputs)))
    adapted(block, block.down)
    adapted(embed, embed)
    return keras.Model(inputs, heads(x)), np.random.default_rng(0).integers(0, 20, (16, 6))


def shared():
    """A frozen composite layer that is called three times."""
    block = Block()
    inputs = keras.Input((6, 8))
    x = layers.Dense(8)(inputs)
    for _ in range(3):
        x = block(x)
    adapted(block, block.up)
    return keras.Model(inputs, heads(x)), vectors()


BUILDS = (
    composite,
    composite_of_composites,
    one_weight,
    nested_functional,
    nested_sequential,
    repeated_in_time,
    attention,
    embedding,
    shared,
)


def trained(build, policy, plan=None):
    """A model's weights before and after two steps, as arrays."""

    def with_labels():
        model, x = build()
        return model, (x, np.random.default_rng(1).integers(0, 3, 16))

    model, (x, y) = compiled(with_labels, policy)
    if plan is not None:
        recompute.apply(model, plan(model))
    before = keras.tree.map_structure(keras.ops.convert_to_numpy, model.trainable_variables)
    with without_graph_optimizer():
        for _ in range(2):
            model.train_on_batch(x, y)
    after = keras.tree.map_structure(keras.ops.convert_to_numpy, model.trainable_variables)
    return before, after


@pytest.mark.parametrize("policy", ["float32", pytest.param("mixed_bfloat16", marks=SLOW)])
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_a_plan_trains_the_weights_that_keras_trains(build, policy):
    begin, expected = trained(build, policy)
    # LoRA's second factor begins with zeros, so its first stays in the first step.
    assert all((one != other).any() for one, other in zip(begin, expected, strict=True))
    _, planned = trained(build, policy, cut)
    for one, other in zip(planned, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("build", [one_weight, *map(slow, BUILDS)])
def test_planner_and_verification_see_such_weights(build):
    def with_labels():
        model, x = build()
        return model, (x, np.random.default_rng(1).integers(0, 3, 16))

    model, (x, y) = compiled(with_labels)
    assert recompute.verify(model, recompute.plan(model, 16, "sqrt"), x, y).exact


def test_a_plan_that_loses_a_gradient_is_refused_by_name(monkeypatch):
    """As when weights were read from layers: a frozen layer said that it has none."""
    by_layer = property(lambda node: getattr(node.operation, "trainable_variables", ()))
    monkeypatch.setattr(Node, "weights", by_layer)
    monkeypatch.setattr(_apply, "_traced", SignatureCache())
    (model, x), y = composite(), np.zeros(16)
    model.compile("sgd", "sparse_categorical_crossentropy")
    plan = cut(model)
    for refused in (
        lambda: recompute.apply(model, plan),
        lambda: recompute.verify(model, plan, x, y),
    ):
        with pytest.raises(RecomputeError, match=r"none for \S+/bias, \S+/lora_kernel_a"):
            refused()
    assert recompute.applied(model) is None


@pytest.mark.parametrize("losses", [("mse", None), (None, "mse")])
@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_an_output_without_a_loss_is_not_decayed(losses, pieces):
    """Plain Keras has no gradient there; with one of zeros a weight would still decay."""

    def trained_weights(with_plan):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((8,))
        x = layers.Dense(8)(layers.Dense(8)(inputs))
        heads = [layers.Dense(1, name=name)(layers.Dense(8, "tanh")(x)) for name in "ab"]
        model = keras.Model(inputs, heads)
        model.compile(keras.optimizers.AdamW(0.1, weight_decay=0.1), list(losses))
        if with_plan:
            names = [node.name for node in OpGraph(model).nodes]
            cuts = [*(len(names) * part // pieces for part in range(pieces)), len(names)]
            segments = (
                PlannedSegment(names[a], names[b - 1], b - a, True)
                for a, b in itertools.pairwise(cuts)
            )
            recompute.apply(model, Plan("all", tuple(segments), 16, 0, 0, 0.0))
        model.fit(np.ones((4, 8)), [np.ones((4, 1))] * 2, epochs=2, verbose=0)
        return keras.tree.map_structure(keras.ops.convert_to_numpy, model.trainable_variables)

    with without_graph_optimizer():
        plain, planned = trained_weights(False), trained_weights(True)
    for one, other in zip(plain, planned, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, rtol=0)


def test_weights_that_no_plan_reaches_are_not_asked_for():
    """A weight that plain training leaves alone may be left alone."""

    class Aside(layers.Layer):
        def build(self, shape):
            self.unused = self.add_weight(shape=(2,))

        def call(self, inputs):
            return inputs * 2.0

    model = sequence(layers.Dense(8), Aside())
    recompute.apply(model, cut(model, 2))
    assert recompute.applied(model).recomputes
