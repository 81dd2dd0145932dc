"""Layers that hold blocks and get several tensors: masks, positions, another sequence."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from kbatch import recompute

TIME, WIDTH = 12, 16


class Block(layers.Layer):
    """Attention over a sequence, and a part that is as wide again."""

    def __init__(self, **more):
        super().__init__(**more)
        self.attention = layers.MultiHeadAttention(2, 8, dropout=0.1)
        self.norm, self.wide = layers.LayerNormalization(), layers.Dense(4 * WIDTH, "gelu")
        self.narrow = layers.Dense(WIDTH)

    def build(self, *shapes, **more):
        shape = (None, TIME, WIDTH)
        self.attention.build(shape, shape)
        self.norm.build(shape)
        self.wide.build(shape)
        self.narrow.build((None, TIME, 4 * WIDTH))
        self.built = True

    def call(self, x, seen, training=None):
        allowed = ops.expand_dims(seen, 1)
        x = x + self.attention(x, x, attention_mask=allowed, training=training)
        return x + self.narrow(self.wide(self.norm(x)))


class Encoder(layers.Layer):
    def __init__(self, **more):
        super().__init__(**more)
        self.blocks = [Block() for _ in range(4)]

    def build(self, *shapes, **more):
        for block in self.blocks:
            block.build()
        self.built = True

    def call(self, x, seen=None, shift=None, training=None):
        if shift is not None:
            x = x + shift
        for block in self.blocks:
            x = block(x, seen, training=training)
        return x


class OfList(Encoder):
    def call(self, inputs, training=None):
        return super().call(*inputs, training=training)


class OfNumber(Encoder):
    def call(self, x, seen, repeats=1, training=None):
        return super().call(x * repeats, seen, training=training)


WAYS = {
    "keyword": lambda x, seen: Encoder(name="encoder")(x, seen=seen),
    "positions": lambda x, seen: Encoder(name="encoder")(x, seen),
    "one between": lambda x, seen: Encoder(name="encoder")(x, shift=x, seen=seen),
    "none": lambda x, seen: Encoder(name="encoder")(x, seen, None),
    "list": lambda x, seen: OfList(name="encoder")([x, seen]),
}


def built(call):
    inputs = {"x": keras.Input((TIME, WIDTH)), "seen": keras.Input((TIME,), dtype="bool")}
    encoded = call(*inputs.values())
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(encoded)))
    model.compile("sgd", "mse")
    return model


def examples(count=32):
    rng = np.random.default_rng(0)
    seen = np.arange(TIME) < rng.integers(1, TIME, (count, 1))
    x = rng.normal(size=(count, TIME, WIDTH)).astype("float32")
    return {"x": x, "seen": seen}, rng.normal(size=(count, 3)).astype("float32")


SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in ("positions", "one between", "none")]


@pytest.mark.parametrize("way", ["keyword", "list", *SLOW])
def test_blocks_are_cut_apart_however_tensors_are_passed(way):
    model = built(WAYS[way])
    plan = recompute.plan(model, 512)
    assert any("encoder/block" in segment.last for segment in plan.segments)
    assert plan.peak_bytes < 0.7 * plan.plain_peak_bytes
    assert recompute.verify(model, plan, *examples()).exact


def test_a_layer_that_gets_more_than_tensors_is_one_operation():
    model = built(lambda x, seen: OfNumber(name="encoder")(x, seen, repeats=2))
    plan = recompute.plan(model, 512)
    assert not any("encoder/" in segment.last for segment in plan.segments)
    assert recompute.verify(model, plan, *examples()).exact


@pytest.mark.slow
def test_a_layer_that_is_called_twice_is_cut_in_both_places():
    encoder = Encoder(name="encoder")
    model = built(lambda x, seen: encoder(encoder(x, seen=seen), shift=x, seen=seen))
    plan = recompute.plan(model, 512)
    assert plan.peak_bytes < 0.7 * plan.plain_peak_bytes
    report = recompute.verify(model, plan, *examples())
    assert max(report.gradients, report.weights, report.state) <= (1e-6 if plan.reordered else 0)
