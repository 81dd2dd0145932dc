"""The order in which a planned step takes its gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbatch import recompute
from kbatch.recompute import _apply
from kbatch.recompute._order import weights_first
from kbatch.runtime import scratch, tensorflow_private
from kbatch.runtime.liveness import needed

pytestmark = pytest.mark.usefixtures("own_policy")

FILTER, INPUT = "Conv2DBackpropFilter", "Conv2DBackpropInput"
LAST = (5, 5, 8, 8)  # the kernel of the last convolution, which no other one has
SHAPE = (4, 16, 16, 3)


def convolutions():
    """Five convolutions, which are cut after the fourth; the last one is kept."""
    inputs = x = keras.Input(SHAPE[1:])
    for number in range(4):
        x = keras.layers.Conv2D(8, 3, padding="same", activation="relu", name=f"c{number}")(x)
    x = keras.layers.Conv2D(8, LAST[0], padding="same", activation="tanh", name="last")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(2, "softmax")(x))


def traced(frozen=(), layers=("c1", "c3")):
    """The operations that run in a step, planned where there are layers to cut after."""
    model = convolutions()
    for name in frozen:
        model.get_layer(name).trainable = False
    model.compile("sgd", "sparse_categorical_crossentropy")
    if layers:
        recompute.apply(model, recompute.plan(model, 4, "manual", layers=layers))
    model.optimizer.build(model.trainable_variables)
    model.train_on_batch(np.zeros(SHAPE), np.zeros(4))
    specs = tf.TensorSpec(SHAPE), tf.TensorSpec((4,), tf.int32)
    step = tf.function(lambda x, y: model.train_step((x, y)))
    return needed(step.get_concrete_function(*specs).graph)


def of(operations, kind):
    return [each for each in operations if each.type == kind]


def ancestors(operation):
    """What runs before, where TensorFlow's graph optimizer has taken each IdentityN apart."""
    seen, stack = {}, [operation]
    while stack:
        current = stack.pop()
        for tensor in current.inputs:
            while tensor.op.type == "IdentityN":
                tensor = tensor.op.inputs[tensor.value_index]
            stack += [tensor.op] if tensor.op.name not in seen else []
            seen[tensor.op.name] = tensor.op
        stack += [each for each in current.control_inputs if each.name not in seen]
        seen.update((each.name, each) for each in current.control_inputs)
    return seen


def test_a_convolution_takes_its_weights_gradient_first():
    operations = traced()
    pairs = [
        (one, other)
        for one in of(operations, INPUT)
        for other in of(operations, FILTER)
        if one.inputs[2] is other.inputs[2]
    ]
    assert len(pairs) == 4  # the first convolution needs no gradient of its input
    assert all(other in one.control_inputs for one, other in pairs)


def test_a_plain_model_is_left_alone():
    assert not any(each.control_inputs for each in of(traced(layers=()), INPUT))


def test_nothing_is_computed_for_frozen_weights():
    assert len(of(traced(frozen=("c2", "last")), FILTER)) == 3


def test_kept_layers_are_freed_before_others_are_recomputed():
    operations = traced()
    (last,) = [each for each in of(operations, FILTER) if tuple(each.outputs[0].shape) == LAST]
    later = operations[operations.index(last) :]
    repeated = of(later, "Conv2D")
    assert len(repeated) == 4
    assert all(last.name in ancestors(each) for each in repeated)


def test_gradients_of_weights_are_handed_on_one_by_one():
    """An optimizer may use and free it while others are still to come."""
    operations = traced(layers=("c3",))  # one segment of four convolutions
    updates = [each for each in operations if each.type == "AssignSubVariableOp"]
    filters = {each.name for each in of(operations, FILTER)}
    before = sorted(len(filters & set(ancestors(each))) for each in updates if each.inputs)
    assert before[0] <= 2
    assert before[-1] == 5  # that of the first convolution


@pytest.mark.parametrize("in_turn", [False, True])
def test_two_gradients_in_turn_share_their_scratch(in_turn, monkeypatch):
    monkeypatch.setattr(tensorflow_private, "uses_onednn", lambda: False)
    found = []

    def both(x, kernel):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = tf.nn.conv2d(x, kernel, 1, "SAME")
        found[:] = tape.gradient(y, [x, kernel], output_gradients=y)
        return found

    specs = tf.TensorSpec(SHAPE), tf.TensorSpec((3, 3, 3, 8))
    tf.function(both).get_concrete_function(*specs)
    assert not in_turn or weights_first(found[1:])
    of_input, of_kernel = (scratch.convolution_bytes(each.op) for each in found)
    alone = [scratch._patch_bytes(each.op) for each in found]
    assert [of_input, of_kernel] == (alone if in_turn else [sum(alone)] * 2)


@pytest.mark.parametrize("ends", [["softmax"], [None, "softmax"], ["relu", "sigmoid"]])
def test_losses_find_the_operation_behind_an_output(ends):
    """Keras takes the loss of what goes into a softmax: of its result it would be another one."""
    inputs = x = keras.Input(SHAPE[1:])
    for name in "ab":
        x = keras.layers.Conv2D(8, 3, activation="relu", name=name)(x)
        x = keras.layers.BatchNormalization()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    for activation in ends:
        x = keras.layers.Activation(activation)(keras.layers.Dense(2)(x))
    model = keras.Model(inputs, x)
    loss = "binary_crossentropy" if ends[-1] == "sigmoid" else "categorical_crossentropy"
    model.compile("adam", loss)
    data = np.random.default_rng(0).random(SHAPE), np.eye(2)[[0, 1, 0, 1]]
    plan = recompute.plan(model, 4, "manual", layers=["a", "b"])
    assert recompute.verify(model, plan, *data).exact


def rows(layer):
    """A layer that is called with the rows of images in a sequence."""
    return keras.layers.TimeDistributed(keras.layers.TimeDistributed(layer))


@pytest.mark.parametrize(
    ("layer", "times"),
    [
        (lambda: keras.layers.ConvLSTM2D(4, 3), 0),
        (lambda: keras.layers.TimeDistributed(keras.layers.Conv2D(4, 3)), 1),
        (lambda: rows(keras.layers.Conv1D(4, 3)), 1),
        (lambda: keras.layers.Dense(4), 0),
    ],
    ids=["loop", "convolution", "of one dimension", "dense"],
)
def test_only_kept_convolutions_get_a_gradient_of_their_own(layer, times, monkeypatch):
    """That of a loop would keep more; operations without weights may stand among the layers."""
    kept = []
    monkeypatch.setattr(
        _apply, "run_kept", lambda each, *rest: kept.append(each) or each.run(*rest)
    )
    inputs = x = keras.Input((8, 16, 16, 3))
    for name in "ab":
        x = keras.layers.TimeDistributed(keras.layers.Conv2D(4, 3), name=name)(x)
    x = keras.ops.mean(keras.ops.tanh(layer()(x)), axis=(1, 2))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(x)))
    recompute.apply(model, recompute.plan(model, 2, "manual", layers=["a", "b"]))
    kept.clear()
    model(np.zeros((2, 8, 16, 16, 3)), training=True)
    assert len(kept) == times


@pytest.mark.parametrize(
    "layer",
    [
        lambda name: keras.layers.Conv2DTranspose(8, 3, strides=2, padding="same", name=name),
        lambda name: keras.layers.DepthwiseConv2D(3, depth_multiplier=2, name=name),
        lambda name: keras.layers.SeparableConv2D(8, 3, name=name),
        lambda name: keras.layers.Conv2D(9, 3, groups=3, name=name),
        lambda name: keras.layers.Conv2D(8, 3, dilation_rate=2, padding="same", name=name),
    ],
    ids=["transposed", "depthwise", "separable", "grouped", "dilated"],
)
def test_every_kind_of_convolution_trains_by_a_plan(layer):
    """The forward pass of a transposed convolution is another one's gradient of its input."""
    inputs = x = keras.Input((12, 12, 3))
    for name in "abc":
        x = keras.layers.BatchNormalization()(layer(name)(x))
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(x))
    model.compile("adam", "categorical_crossentropy")
    data = np.random.default_rng(0).random((4, 12, 12, 3)), np.eye(2)[[0, 1, 0, 1]]
    plan = recompute.plan(model, 4, "manual", layers=["a", "b"])
    report = recompute.verify(model, plan, *data)
    assert max(report.loss, report.gradients) < 1e-6
