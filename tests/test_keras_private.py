"""Each private name of this library that kbatch uses is still there and does what kbatch needs."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from kbatch.runtime import keras_private


@pytest.fixture
def model():
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    joined = layers.Add(name="joined")([layers.Dense(3, name="dense")(a), b])
    return keras.Model({"a": a, "b": b}, {"out": layers.Dropout(0.5, name="drop")(joined)})


def test_an_operation_is_called_with_training_if_it_takes_it(model):
    x = tf.ones((64, 3))
    drop, add = model.get_layer("drop"), model.get_layer("joined")
    assert np.any(keras_private.call_function(drop, training=True)(x).numpy() == 0)
    assert np.all(keras_private.call_function(drop, training=False)(x).numpy() == 1)
    assert np.all(keras_private.call_function(add, training=True)([x, x]).numpy() == 2)


def test_the_global_seed_generator_exists_after_it_is_made():
    keras.utils.clear_session()
    keras_private.create_global_seed_generator()

    @tf.function
    def draw():
        return keras.random.normal((2,))

    assert draw().shape == (2,)


def test_the_innermost_stateless_scope_is_told():
    assert keras_private.current_stateless_scope() is None
    with keras.StatelessScope() as outer:
        assert keras_private.current_stateless_scope() is outer
        with keras.StatelessScope() as inner:
            assert keras_private.current_stateless_scope() is inner


def test_layers_inside_of_layers_are_listed():
    wrapped = layers.Bidirectional(layers.LSTM(2, name="lstm"), name="wrapper")
    names = {layer.name for layer in keras_private.flatten_layers(wrapped)}
    assert {"wrapper", "forward_lstm", "backward_lstm"} <= names


def test_functional_models_are_known_and_sequential_ones_have_one_inside(model):
    functional = keras_private.functional_class()
    assert isinstance(model, functional)
    sequential = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    inside = keras_private.functional_of_sequential(sequential)
    assert isinstance(inside, functional)
    assert inside.inputs[0].shape == (None, 3)
    assert keras_private.functional_of_sequential(keras.Sequential([layers.Dense(2)])) is None


def test_the_structures_of_inputs_and_outputs_are_those_of_the_model(model):
    assert set(keras_private.input_structure(model)) == {"a", "b"}
    assert set(keras_private.output_structure(model)) == {"out"}


def test_nodes_are_listed_from_the_inputs_down_to_depth_0(model):
    by_depth = keras_private.nodes_by_depth(model)
    depth = {node.operation.name: depth for depth in by_depth for node in by_depth[depth]}
    assert depth["dense"] > depth["joined"] > depth["drop"] == 0
    assert all(node.is_input for node in by_depth[max(by_depth)])


def test_inputs_become_a_flat_list_in_the_order_of_the_model(model):
    tensors = keras_private.standardized_inputs(
        model, {"b": tf.zeros((2, 3)), "a": np.ones((2, 3))}
    )
    assert [float(tensor[0, 0]) for tensor in tensors] == [1.0, 0.0]


def test_an_optional_input_is_known():
    required, optional = keras.Input((3,)), keras.Input((3,), optional=True)
    assert not keras_private.is_optional_input(required)
    assert keras_private.is_optional_input(optional)


def test_the_losses_that_a_layer_adds_are_known_by_id():
    layer = layers.Dense(2, activity_regularizer="l2")
    with keras.StatelessScope(collect_losses=True) as scope:
        layer.build((None, 2))
    with keras.StatelessScope(
        [(variable, tf.ones(variable.shape)) for variable in layer.variables], collect_losses=True
    ) as scope:
        layer(tf.ones((1, 2)))
    assert keras_private.loss_ids(layer) == {id(loss) for loss in scope.losses}
    assert len(scope.losses) == 1


def test_a_mask_is_attached_and_read():
    tensor, mask = tf.ones((2, 3)), tf.constant([[True, True, False]] * 2)
    assert keras_private.mask_of(tensor) is None
    keras_private.set_mask(tensor, mask)
    assert keras_private.mask_of(tensor) is mask
    masked = layers.Embedding(5, 2, mask_zero=True)(keras.Input((3,), dtype="int32"))
    assert keras_private.mask_of(masked) is not None


def test_frozen_weights_stay_among_a_layers_own():
    layer = layers.Dense(2)
    layer.build((None, 3))
    layer.trainable = False
    own = keras_private.own_trainable_variables(layer)
    assert [variable.name for variable in own] == ["kernel", "bias"]


def test_a_variable_is_read_past_scopes():
    variable = keras.Variable([1.0])
    with keras.StatelessScope([(variable, tf.constant([2.0]))]):
        assert float(variable.value[0]) == 2.0
        assert float(keras_private.tensorflow_variable(variable)[0]) == 1.0
    assert isinstance(keras_private.tensorflow_variable(variable), tf.Variable)
