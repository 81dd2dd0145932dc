"""Plans by every strategy, their costs against brute force, and the work of operations."""

import dataclasses
import itertools
import json
import random

import keras
import numpy as np
import pytest
import recompute_models
import tensorflow as tf
from keras import layers

from kbatch import recompute
from kbatch.errors import RecomputeError
from kbatch.models.policies import policy_scope
from kbatch.recompute import _solver
from kbatch.recompute._costs import BYTES_PER_FLOP, ModelCosts, OpCost, work_of
from kbatch.recompute._plan import Plan
from kbatch.recompute._planner import apply_recipe
from kbatch.recompute._solver import Budget, Predictor
from kbatch.runtime.trace import PRIME, Size


class Node:
    def __init__(self, reads, writes):
        self.reads, self.writes = reads, writes


class MadeUp:
    """An op graph of single values; residual connections read some of them once more."""

    def __init__(self, rng, count):
        self.nodes = [
            Node(
                (position, *([rng.randrange(position)] if position and rng.random() < 0.2 else [])),
                (position + 1,),
            )
            for position in range(count)
        ]
        self.outputs = (count,)

    def live(self, position):
        later = {number for node in self.nodes[position:] for number in node.reads} | set(
            self.outputs
        )
        return tuple(sorted(number for number in later if number <= position))


def made_up(seed, count=7):
    rng = random.Random(seed)
    graph = MadeUp(rng, count)
    sizes = {number: Size(0.0, rng.choice([1, 2, 4, 8]) * 1e6) for number in range(count + 1)}
    peaks = [1e6 * rng.random() for _ in graph.nodes]
    costs = [
        OpCost(
            internal=Size(0.0, rng.choice([0, 0, 1e6])),
            needs=frozenset(number for number in (*node.reads, *node.writes) if rng.random() < 0.6),
            forward_peak=Size(0.0, 1e6 * rng.random()),
            backward_peak=Size(0.0, peak),
            plain_backward_peak=Size(0.0, peak + rng.choice([0, 1e6])),
            weight_gradients=1e5 * rng.random(),
            forward_work=rng.random(),
            backward_work=2 * rng.random(),
            recompute_work=rng.random(),
            recompute_reads=frozenset(node.reads),
        )
        for node, peak in zip(graph.nodes, peaks, strict=True)
    ]
    costs_of_all = ModelCosts(tuple(costs), sizes, frozenset(sizes))
    return Predictor(graph, costs_of_all, 4, range(count + 1))


def every_plan(count):
    for cuts in itertools.chain.from_iterable(
        itertools.combinations(range(1, count), size) for size in range(count)
    ):
        ends = [0, *cuts, count]
        for kinds in itertools.product((False, True), repeat=len(ends) - 2):
            yield [
                (start, stop, kind)
                for start, stop, kind in zip(ends, ends[1:], [*kinds, False], strict=False)
            ]


@pytest.mark.parametrize("seed", range(12))
def test_the_lowest_peak_is_that_of_brute_force(seed):
    predictor = made_up(seed)
    best = min(predictor.predict(spans).peak_bytes for spans in every_plan(7))
    assert predictor.predict(_solver.lowest(predictor)).peak_bytes <= best * 1.001


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("share", [0.6, 0.8])
def test_under_a_budget_no_plan_is_faster(seed, share):
    predictor = made_up(seed)
    plain = predictor.predict([(0, 7, False)])
    for budget in (
        Budget(peak_bytes=share * plain.peak_bytes),
        Budget(kept_bytes=share * plain.kept_bytes),
    ):
        predictions = [predictor.predict(spans) for spans in every_plan(7)]
        fitting = [
            one.extra_work
            for one in predictions
            if one.peak_bytes <= budget.peak_bytes and one.kept_bytes <= budget.kept_bytes
        ]
        found = _solver.cheapest(predictor, budget)
        assert (found is None) == (not fitting)
        if found is not None:
            prediction = predictor.predict(found)
            assert prediction.peak_bytes <= budget.peak_bytes
            assert prediction.kept_bytes <= budget.kept_bytes
            assert prediction.extra_work == pytest.approx(min(fitting))


@pytest.fixture(scope="module")
def model():
    return recompute_models.residual()[0]


def test_every_strategy_holds_every_operation_once(model):
    named = ("none", "minimal", "sqrt", "stages")
    plans = [recompute.plan(model, 32, strategy) for strategy in named]
    plans += [
        recompute.plan(model, 32, "manual", layers=[model.layers[4].name]),
        recompute.plan(model, 32, "budget", kept_share=0.7),
        recompute.plan(model, 32, "segments", count=2),
        recompute.plan(model, 32, "segments", count=4),
        recompute.plan(model, 32, "blocks"),
    ]
    assert [len(plan.segments) for plan in plans[6:8]] == [2, 4]
    for plan in plans:
        assert sum(segment.operations for segment in plan.segments) == len(model.layers) - 1
        assert not plan.segments[-1].recompute
        assert Plan.from_json(plan.to_json()) == plan
        assert all(segment.first in str(plan) for segment in plan.segments)
    none, minimal = plans[:2]
    assert (none.extra_seconds_ratio, none.recomputes) == (0.0, False)
    assert minimal.peak_bytes <= min(plan.peak_bytes for plan in plans)
    assert plans[4].segments[0].last == model.layers[4].name
    assert plans[5].kept_bytes <= 0.7 * none.kept_bytes


def test_the_front_goes_from_the_fastest_to_the_smallest(model):
    front = recompute.front(model, 32)
    assert front[0].extra_seconds_ratio == 0
    assert len(front) > 2
    for faster, smaller in itertools.pairwise(front):
        assert faster.extra_seconds_ratio < smaller.extra_seconds_ratio
        assert faster.peak_bytes > smaller.peak_bytes


def test_cuts_do_not_depend_on_the_batch_and_bytes_grow_with_it(model):
    one, other = recompute.plan(model, 8, "sqrt"), recompute.plan(model, 64, "sqrt")
    assert one.segments == other.segments
    assert one.kept_bytes < other.kept_bytes


def test_an_operation_that_no_gradient_needs_is_not_run_again():
    inputs = keras.Input((8,))
    dense = keras.Model(inputs, layers.Dense(4)(layers.Dense(2000, name="wide")(inputs)))
    assert recompute.plan(dense, 32, "manual", layers=["wide"]).extra_seconds_ratio == 0


def test_a_nested_model_is_cut_inside():
    inner, _ = recompute_models.residual()
    inputs = keras.Input((16, 16, 3))
    outer = keras.Model(inputs, layers.Dense(3)(inner(inputs)))
    name = f"{inner.name}/{inner.layers[5].name}"
    plan = recompute.plan(outer, 8, "manual", layers=[name])
    assert plan.segments[0].last == name


class Block(layers.Layer):
    """A residual block of two layers."""

    def __init__(self, **more):
        super().__init__(**more)
        self.norm, self.dense = layers.LayerNormalization(), layers.Dense(16, "gelu")
        self.drop = layers.Dropout(0.1, seed=3)

    def build(self, shape):
        self.norm.build(shape)
        self.dense.build(shape)

    def call(self, x, training=None):
        return x + self.drop(self.dense(self.norm(x)), training=training)


class Encoder(layers.Layer):
    """Blocks in one layer, as in the vision transformers of keras-hub."""

    def __init__(self, **more):
        super().__init__(**more)
        self.blocks = [Block() for _ in range(6)]

    def build(self, shape):
        for block in self.blocks:
            block.build(shape)
        self.built = True

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x, training=training)
        return x


class Untold(Encoder):
    """Its call does not take `training`; the dropout in it learns of it from Keras."""

    def build(self, shape):
        self.drop = layers.Dropout(0.5)
        super().build(shape)

    def call(self, x):
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        return x


class Undecided(Encoder):
    """It gives its blocks `training=None`, with which Keras does not train them."""

    def call(self, x):
        return super().call(x)


class Scaled(Encoder):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")
        super().build(shape)

    def call(self, x, training=None):
        return super().call(x * self.scale, training)


class Noisy(Encoder):
    def call(self, x, training=None):
        return super().call(x + keras.random.normal((16,)), training)


class Penalized(Encoder):
    def call(self, x, training=None):
        x = super().call(x, training)
        self.add_loss(keras.ops.mean(x))
        return x


class Frozen(Encoder):
    """Its normalization measures nothing, whatever it is trained with."""

    def build(self, shape):
        self.norm = layers.BatchNormalization()
        self.norm.build(shape)
        super().build(shape)

    def call(self, x, training=None):
        return super().call(self.norm(x, training=False), training)


class Reshaped(Encoder):
    """It tells the size of the batch, which is open where it is traced."""

    def call(self, x, training=None):
        return super().call(keras.ops.reshape(x, (keras.ops.shape(x)[0], 16)), training)


class InTensorFlow(Encoder):
    def call(self, x, training=None):
        return super().call(tf.math.sin(x), training)


def encoded(kind):
    inputs = keras.Input((16,))
    model = keras.Model(inputs, layers.Dense(3)(kind(name="encoder")(inputs)))
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("kind", [Encoder, Untold])
@pytest.mark.parametrize(
    "policy", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)]
)
def test_a_layer_that_only_calls_others_is_cut_inside(policy, kind):
    with policy_scope(policy, "float32"):
        model = encoded(kind)
    plan = recompute.plan(model, 512)
    assert any(segment.last.startswith("encoder/block") for segment in plan.segments)
    assert plan.peak_bytes < 0.6 * plan.plain_peak_bytes
    assert recompute.verify(model, plan, np.ones((64, 16)), np.ones((64, 3))).exact


@pytest.mark.parametrize(
    "kind", [Scaled, Noisy, Penalized, Frozen, Undecided, Reshaped, InTensorFlow]
)
def test_a_layer_that_does_more_is_one_operation(kind):
    model = encoded(kind)
    plan = recompute.plan(model, 512)
    assert [segment.last for segment in plan.segments][-1] == model.layers[-1].name
    assert not any("/" in segment.last for segment in plan.segments)
    assert "encoder keeps most of it" in str(plan)
    assert model.losses == []


def tied_in_branches():
    inputs, tied = [keras.Input((16,)), keras.Input((16,))], layers.Dense(16, name="tied")
    ends = []
    for one in inputs:
        x = tied(one)
        for _ in range(4):
            x = layers.Dense(16, "gelu")(x)
        ends.append(x)
    model = keras.Model(inputs, tied(layers.Add()(ends)))
    model.compile("sgd", "mse")
    return model


def test_a_sum_is_reordered_where_else_nothing_is_saved():
    model, x = tied_in_branches(), np.random.default_rng(0).normal(size=(64, 16))
    for each in (recompute.plan(model, 512), recompute.front(model, 512)[-1]):
        assert each.peak_bytes < 0.9 * each.plain_peak_bytes
        assert "branches that use the weight 'tied/" in each.reordered
        assert f"to rounding: {each.reordered}" in str(each)
        report = recompute.verify(model, each, [x, x[::-1]], x)
        assert max(report.loss, report.gradients, report.weights, report.state) < 1e-6
    unsaid = dataclasses.replace(each, reordered="")
    with pytest.raises(RecomputeError, match="summed in another order"):
        recompute.apply(model, unsaid)


def test_a_budget_is_met_in_another_order_only_if_it_must_be():
    model = tied_in_branches()
    assert recompute.plan(model, 512, "budget", kept_share=1.0).reordered == ""
    assert recompute.plan(model, 512, "budget", kept_share=0.6).reordered


MORE = (Scaled, Undecided, Reshaped, InTensorFlow)


@pytest.mark.parametrize(
    "kind",
    [Frozen, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)],
)
def test_a_layer_that_does_more_is_recomputed_whole(kind):
    model = encoded(kind)
    plan = recompute.plan(model, 512, "manual", layers=["encoder"])
    assert plan.recomputes
    assert recompute.verify(model, plan, np.ones((64, 16)), np.ones((64, 3))).exact


class Reader(layers.Layer):
    """Hands a second value on, as T5's layers do their position bias."""

    def __init__(self, forks, **kwargs):
        super().__init__(**kwargs)
        self.forks, self.dense = forks, layers.Dense(16, "gelu")

    def build(self, shape, *others):
        self.dense.build(shape)
        self.built = True

    def call(self, x, aside, source):
        return self.dense(x + source), aside + source if self.forks else aside

    def compute_output_shape(self, shape, *others):
        return shape, shape


@pytest.mark.parametrize("forks", [False, True])
def test_results_that_do_not_need_a_value_are_no_branches_of_it(forks):
    inputs = keras.Input((16,))
    x = source = layers.Dense(16)(inputs)
    aside = layers.Dense(16)(inputs)
    for _ in range(5):
        x, aside = Reader(forks)(x, aside, source)
    model = keras.Model(inputs, layers.Add()([x, aside]))
    model.compile("sgd", "mse")
    plan = recompute.plan(model, 512)
    ends = [segment.last for segment in plan.segments[:-1]]
    assert any(name.startswith("reader") for name in ends) == (not forks)
    x, y = np.random.default_rng(0).normal(size=(2, 64, 16))
    assert recompute.verify(model, plan, x, y).exact


def several(kind):
    """Two inputs in a structure of one kind."""
    first, second = keras.Input((16,), name="a"), keras.Input((16,), name="b")
    return {
        "dict": {"a": first, "b": second},
        "list": [first, second],
        "tuple": (first, second),
    }[kind]


@pytest.mark.parametrize("kind", ["dict", "list", "tuple"])
def test_a_nested_model_of_several_inputs_is_cut_inside(kind):
    inside = several(kind)
    x = layers.Add()(keras.tree.flatten(inside))
    for _ in range(6):
        x = layers.Dense(16, "gelu")(x)
    inner = keras.Model(inside, {"x": x, "y": layers.Dense(2)(x)}, name="inner")
    outside = several(kind)
    both = inner(outside)
    model = keras.Model(outside, layers.Dense(3)(both["x"]) + layers.Dense(3)(both["y"]))
    model.compile("sgd", "mse")
    plan = recompute.plan(model, 512)
    assert any(segment.last.startswith("inner/") for segment in plan.segments[:-1])
    assert plan.peak_bytes < 0.7 * recompute.plan(model, 512, "none").peak_bytes
    data = {"a": np.ones((32, 16)), "b": np.ones((32, 16))}
    inputs = data if kind == "dict" else type(outside)(data.values())
    assert recompute.verify(model, plan, inputs, np.ones((32, 3))).exact


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"strategy": "best"}, "`strategy` must be one of"),
        ({"strategy": "budget"}, "neither peak_bytes nor kept_share"),
        ({"strategy": "segments"}, 'strategy="segments" must come with `count`'),
        ({"strategy": "sqrt", "count": 3}, "and no other strategy may"),
        ({"strategy": "segments", "count": 1}, "`count` must be a whole number of at least 2"),
        ({"strategy": "segments", "count": "4"}, "`count` must be a whole number of at least 2"),
        ({"strategy": "sqrt", "peak_bytes": 1e6}, 'A budget must come with strategy="budget"'),
        ({"strategy": "budget", "kept_share": 1.5}, "at most 1"),
        ({"strategy": "budget", "peak_bytes": True}, "a number above 0"),
        ({"strategy": "manual", "layers": "dense"}, r"Pass layers=\['dense'\]"),
        ({"strategy": "manual"}, "must come with `layers`"),
        ({"strategy": "manual", "layers": ["nothing"]}, "must be names of this model's layers"),
        ({"strategy": "budget", "peak_bytes": 1000}, "Some plan must meet the budget"),
        ({"strategy": "budget", "peak_bytes": -1}, "above 0"),
        ({"batch_size": 0}, "`batch_size` must be"),
        ({"batch_size": "16"}, "Received: '16'"),
        ({"strategy": "budget:0.5"}, r'Pass strategy="budget", kept_share=0\.5'),
    ],
)
def test_nonsense_is_one_clear_sentence(model, arguments, says):
    with pytest.raises(RecomputeError, match=says):
        recompute.plan(model, **{"batch_size": 8, **arguments})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 99}, "a plan of version 99"),
        ({"batch_size": -3}, r"`int` >= 1 - at `\$\.batch_size`"),
        ({"batch_size": 2.5}, r"`int`, got `float` - at `\$\.batch_size`"),
        ({"peak_bytes": "many"}, r"`int`, got `str` - at `\$\.peak_bytes`"),
        ({"extra_seconds_ratio": float("nan")}, r"`\$\.extra_seconds_ratio`"),
        ({"segments": []}, "a plan without segments"),
        (
            {"segments": [{"first": "a", "last": "a", "operations": "eight", "recompute": True}]},
            r"`int`, got `str` - at `\$\.segments\[0\]\.operations`",
        ),
        (
            {"segments": [{"first": "a", "last": "a", "operations": 8, "recompute": 1}]},
            r"`bool`, got `int` - at `\$\.segments\[0\]\.recompute`",
        ),
        ({"segments": [{"first": "a"}]}, r"missing required field `last` - at `\$\.segments\[0\]`"),
        ({"color": "red"}, "unknown names 'color'"),
    ],
)
def test_a_broken_text_is_no_plan(model, change, says):
    fields = json.loads(recompute.plan(model, 8, "sqrt").to_json())
    with pytest.raises(RecomputeError, match=rf"Plan\.to_json.*{says}"):
        Plan.from_json(json.dumps({**fields, **change}))
    with pytest.raises(RecomputeError, match=r"Plan\.to_json"):
        Plan.from_json('{"version": 1}')


def test_models_that_are_built_alike_share_their_traced_costs(monkeypatch):
    from kbatch.recompute import _planner

    def build(units):
        inputs = keras.Input((8,))
        return keras.Model(
            inputs, keras.layers.Dense(1)(keras.layers.Dense(units, "relu")(inputs) + 1.0)
        )

    traced = []
    costs_of = _planner.costs_of
    monkeypatch.setattr(_planner, "costs_of", lambda graph: traced.append(graph) or costs_of(graph))
    for units, times in ((11, 1), (11, 1), (13, 2)):
        recompute.plan(build(units), batch_size=4)
        assert len(traced) == times


def test_a_plan_holds_only_for_models_that_are_built_alike():
    def build(first):
        return keras.Sequential(
            [keras.Input((8,)), first, keras.layers.Dense(3), keras.layers.Dense(1)]
        )

    plan = recompute.plan(build(keras.layers.Dense(4)), batch_size=4, strategy="sqrt")
    recompute.apply(build(keras.layers.Dense(4)), plan)
    with pytest.raises(RecomputeError, match="made for the model"):
        recompute.apply(build(keras.layers.LayerNormalization()), plan)


def test_layers_of_a_nested_model_are_found_by_their_own_name(model):
    inputs = keras.Input((16, 16, 3))
    outer = keras.Model(inputs, layers.Dense(3)(model(inputs)))
    with pytest.raises(
        RecomputeError, match=f"Pass names such as {model.name}/{model.layers[5].name}\\b"
    ):
        recompute.plan(outer, 8, "manual", layers=[model.layers[5].name])


def test_a_model_of_one_batch_size_is_planned_for_that_one():
    inputs = keras.Input(batch_shape=(16, 8))
    x = keras.ops.reshape(keras.layers.Dense(64, "relu")(inputs), (16, 4, 16))
    model = keras.Model(
        inputs, keras.layers.Dense(2)(keras.layers.Flatten()(keras.layers.Dense(16, "relu")(x)))
    )
    plan = recompute.plan(model, 16)
    assert plan.peak_bytes > 16 * 64 * 4
    with pytest.raises(RecomputeError, match=r"8, where .* has 16.*Pass batch_size=16"):
        recompute.plan(model, 8)
    apply_recipe(model, "sqrt")
    assert vars(model)["call"].plan.batch_size == 16


@pytest.mark.parametrize("ask", [recompute.plan, recompute.front])
def test_unknown_input_sizes_are_refused_and_known_ones_planned(ask):
    def build(size):
        return keras.Sequential(
            [
                keras.Input((size, size, 3)),
                *(keras.layers.Conv2D(4, 3, activation="relu", name=f"c{i}") for i in range(4)),
            ]
        )

    with pytest.raises(RecomputeError, match=r"known size .*\(None, None, None, 3\)"):
        ask(build(None), 16)
    open_size = build(None)
    recompute.apply(open_size, recompute.plan(build(32), 16, "sqrt"))
    assert "call" in vars(open_size)


def test_a_budget_may_be_a_number_of_numpy(model):
    bytes_ = recompute.plan(model, 16).peak_bytes
    assert (
        recompute.plan(model, 16, "budget", peak_bytes=np.int64(2 * bytes_)).peak_bytes
        <= 2 * bytes_
    )


def operation(function, kind, *shapes):
    specs = [tf.TensorSpec(shape) for shape in shapes]
    graph = tf.function(function).get_concrete_function(*specs).graph
    return next(each for each in graph.get_operations() if each.type == kind)


def expected(flops, *sizes):
    return (4 * sum(sizes) + BYTES_PER_FLOP * flops) / PRIME


def test_a_matrix_product_multiplies_and_adds_each_pair():
    m, k, n = PRIME, 6, 10
    product = operation(tf.matmul, "MatMul", (m, k), (k, n))
    assert work_of(product, {}) == pytest.approx(expected(2 * m * k * n, m * k, k * n, m * n))


def test_a_convolution_multiplies_its_kernel_with_each_place():
    image, kernel, out = (PRIME, 8, 8, 3), (3, 3, 3, 5), (PRIME, 8, 8, 5)
    found = operation(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), "Conv2D", image, kernel)
    sizes = [PRIME * 8 * 8 * 3, 3 * 3 * 3 * 5, PRIME * 8 * 8 * 5]
    assert found.outputs[0].shape == out
    assert work_of(found, {}) == pytest.approx(expected(2 * 27 * sizes[2], *sizes))


def test_other_operations_only_move_bytes():
    size = PRIME * 7
    assert work_of(operation(tf.tanh, "Tanh", (PRIME, 7)), {}) == expected(0, size, size)
    reshaped = operation(lambda x: tf.reshape(x, (-1,)), "Reshape", (PRIME, 7))
    assert work_of(reshaped, {}) == 0.0


def test_a_loop_of_unknown_turns_works_at_least_once():
    def step(x):
        return tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: (tf.tanh(y),), [x])[0]

    graph = tf.function(step).get_concrete_function(tf.TensorSpec((PRIME, 7))).graph
    loop = next(each for each in graph.get_operations() if "While" in each.type)
    assert work_of(loop, {}) >= expected(0, PRIME * 7, PRIME * 7)
