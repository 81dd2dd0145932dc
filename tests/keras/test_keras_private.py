"""Each private name of Keras and KerasTuner that kbatch uses is there and does what it needs."""

import inspect
import re

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from kbatch.models.maker import GuardedHyperParameters, values_of_axes
from kbatch.runtime import keras_private, keras_tuner_private
from kbatch.runtime.keras_private import replaced_method


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


def test_a_layer_trains_where_its_call_does_not_say_otherwise():
    around, drop, x = layers.Identity(), layers.Dropout(0.5), keras.ops.ones((64, 3))
    with keras_private.called_in_training(around):
        assert np.any(drop(x).numpy() == 0)
        assert np.all(drop(x, training=False).numpy() == 1)
    assert np.all(drop(x).numpy() == 1)


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
    model = keras.Sequential([keras.Input((2, 2)), keras.Sequential([wrapped])])
    names = [layer.name for layer in keras_private.flatten_layers(model)]
    assert names[0] == model.name
    assert {"wrapper", "forward_lstm", "backward_lstm"} <= {*names}


def test_functional_and_sequential_models_are_known(model):
    functional = keras_private.functional_class()
    assert isinstance(model, functional)
    sequential = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    inside = keras_private.functional_of_sequential(sequential)
    assert isinstance(inside, functional)
    assert inside.inputs[0].shape == (None, 3)
    assert keras_private.functional_of_sequential(keras.Sequential([layers.Dense(2)])) is None


def test_the_structures_of_inputs_and_outputs_are_the_models(model):
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
    inputs = keras.Input((3,), dtype="int32")
    assert keras_private.mask_of(inputs) is None
    assert keras_private.mask_of(layers.Embedding(5, 2, mask_zero=True)(inputs)) is not None


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


def small(**settings):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="one")])
    model.compile(keras.optimizers.SGD(0.1, **settings), "mse", metrics=["mae"])
    return model


def test_accumulated_gradients_and_passes_are_the_optimizers():
    model = small(gradient_accumulation_steps=2)
    model.train_on_batch(np.ones((1, 2)), np.ones((1, 1)))
    sums = keras_private.accumulated_gradients(model.optimizer)
    assert [tuple(total.shape) for total in sums] == [(2, 1), (1,)]
    assert all(total.name.endswith(keras_private.GRADIENT_SUM) for total in sums)
    assert any(np.any(keras.ops.convert_to_numpy(total)) for total in sums)
    assert int(keras_private.passes(model.optimizer)) == 1
    assert int(model.optimizer.iterations) == 0


def test_compile_arguments_are_those_of_the_user():
    arguments = keras_private.compile_arguments(small())
    assert arguments["loss"] == "mse"
    assert arguments["metrics"] == ["mae"]
    assert isinstance(arguments["optimizer"], keras.optimizers.SGD)


def test_the_compiled_loss_calls_what_stands_in_for_its_call(model):
    model.compile("sgd", "mse")
    loss = keras_private.compile_loss(model)
    loss.call = lambda y_true, y_pred, sample_weight=None: tf.constant(7.0)
    assert float(model.compute_loss(None, tf.ones((2, 3)), {"out": tf.ones((2, 3))})) == 7.0
    del loss.call
    y = {"out": tf.ones((2, 3))}
    assert float(model.compute_loss(None, y, {"out": tf.zeros((2, 3))})) == 1.0


def test_decay_exclusions_are_copied():
    source, target = keras.optimizers.AdamW(), keras.optimizers.AdamW()
    source.exclude_from_weight_decay(var_names=["bias"])
    assert all(hasattr(source, name) for name in keras_private.DECAY_EXCLUSIONS)
    keras_private.copy_decay_exclusions(source, target)
    for optimizer, decayed in ((source, 1.0), (target, 1.0), (keras.optimizers.AdamW(), 0.9)):
        weight = keras.Variable(1.0, name="bias")
        optimizer.weight_decay, optimizer.learning_rate = 1.0, 0.1
        optimizer.build([weight])
        optimizer._apply_weight_decay([weight])
        assert float(weight) == pytest.approx(decayed)


def test_the_name_counters_can_be_reset_and_put_back():
    before = keras_private.global_attributes([keras_private.NAME_COUNTERS])
    number = int(re.sub(r"\D", "", keras.layers.Dense(1).name) or 0)
    keras_private.set_global_attributes({keras_private.NAME_COUNTERS: None})
    assert keras.layers.Dense(1).name == "dense"
    counted = keras_private.global_attributes([keras_private.NAME_COUNTERS])
    assert counted[keras_private.NAME_COUNTERS]["dense"] == 1
    keras_private.set_global_attributes(before)
    if before[keras_private.NAME_COUNTERS] is not None:
        assert keras.layers.Dense(1).name == f"dense_{number + 1}"


def test_the_seeds_are_among_the_global_attributes():
    before = keras_private.global_attributes(keras_private.SEEDS)
    keras.utils.set_random_seed(7)
    keras.random.uniform(())
    state = keras_private.global_attributes(keras_private.SEEDS)
    assert state["global_random_seed"] == 7
    assert isinstance(state["global_seed_generator"], keras.random.SeedGenerator)
    keras_private.set_global_attributes(before)
    assert keras_private.global_attributes(keras_private.SEEDS) == before


def test_learning_rate_setting_is_a_schedule_where_one_was_given():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    assert keras_private.learning_rate_setting(keras.optimizers.SGD(schedule)) is schedule
    constant = keras_private.learning_rate_setting(keras.optimizers.SGD(0.5))
    assert float(constant) == 0.5


def input_and_head():
    return [keras.Input((3,)), keras.layers.Dense(2, name="head")]


def test_the_outputs_of_a_model_with_a_graph_have_names():
    assert keras_private.output_names(keras.Sequential(input_and_head())) == ("head",)
    inputs, head = input_and_head()
    model = keras.Model(inputs, {"first": head(inputs), "second": head(inputs)})
    assert len(keras_private.output_names(model)) == 2
    assert keras_private.output_names(None) == ()
    assert keras_private.output_names(keras.Sequential([keras.layers.Dense(2)])) == ()


@pytest.mark.parametrize("schedule", [True, False])
def test_a_schedule_of_an_optimizer_is_seen(schedule):
    rate = keras.optimizers.schedules.CosineDecay(0.1, 10) if schedule else 0.1
    assert keras_private.has_schedule(keras.optimizers.SGD(rate)) is schedule


def accumulating():
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, global_clipnorm=1.0)
    variable = keras.Variable([3.0, 4.0])
    optimizer.build([variable])
    return optimizer, variable


def test_weights_are_updated_by_clipped_gradients():
    optimizer, variable = accumulating()
    keras_private.update_weights(optimizer, [tf.constant([6.0, 8.0])], [variable])
    np.testing.assert_allclose(variable, [2.94, 3.92], rtol=1e-6)


@pytest.mark.parametrize("name", [keras_private.REDUCTION, keras_private.APPLICATION])
def test_an_update_goes_through_the_methods_of_an_optimizer(name):
    optimizer, variable = accumulating()
    called, own = [], getattr(optimizer, name)
    setattr(optimizer, name, lambda *arguments: called.append(name) or own(*arguments))
    for _ in range(2):
        optimizer.apply([tf.constant([1.0, 2.0])], [variable])
    assert name in called


def test_a_model_is_not_built_again_inside_the_block():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = keras.Sequential(input_and_head())
    own = model.distribute_strategy
    with keras_private.without_symbolic_build(model):
        assert model._distribute_strategy is None
        model._maybe_symbolic_build(iterator=iter([None]))  # would fail
    assert model.distribute_strategy is own


def test_the_sum_of_gradients_of_one_weight_is_found():
    first, second = keras.Variable([1.0, 2.0]), keras.Variable([[3.0]])
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    optimizer.build([first, second])
    optimizer.apply([tf.constant([[5.0]]), tf.constant([6.0, 7.0])], [second, first])
    sums = [keras_private.accumulated_gradient_of(optimizer, each) for each in (first, second)]
    assert [each.numpy().tolist() for each in sums] == [[6.0, 7.0], [[5.0]]]


@pytest.mark.parametrize(("default", "left"), [(16, 16), (64, 32)])
def test_a_choice_is_narrowed(default, left):
    hp = keras_tuner.HyperParameters()
    hp.Choice("size", [16, 32, 64], default=default)
    (choice,) = hp.space
    keras_tuner_private.narrow_choice(choice, [16, 32])
    assert choice.values == [16, 32]
    assert choice.default == left
    assert choice.prob_to_value(0.999) == 32


def test_a_hyperparameter_is_left_one_value():
    hp = keras_tuner.HyperParameters()
    hp.Boolean("jit", default=True)
    hp.Choice("size", [16, 32])
    keras_tuner_private.fix_hyperparameter(hp, "jit", False)
    read = keras_tuner.HyperParameters.from_config(hp.get_config())
    for each in (hp, read):
        assert [axis.name for axis in each.space] == ["jit", "size"]
        assert each.get("jit") is False
    assert hp.space[0].random_sample() is False


@pytest.mark.parametrize(
    ("declare", "default"),
    [
        (lambda hp: hp.Int("taken", 1, 2), 1),
        (lambda hp: hp.Float("taken", 1.0, 2.0), 1.0),
        (lambda hp: hp.Boolean("taken"), False),
        (lambda hp: hp.Choice("taken", [1, 2]), 1),
        (lambda hp: hp.Fixed("taken", 1), 1),
    ],
)
def test_every_declaration_goes_through_retrieve(declare, default):
    hp = keras_tuner.HyperParameters()
    assert declare(GuardedHyperParameters(hp, frozenset({"taken"}))) == default
    assert not hp.space
    assert values_of_axes(hp) == {"taken": default}


def test_the_callbacks_of_a_trial_are_callbacks_of_keras():
    for kind in (keras_tuner_private.save_best_epoch(), keras_tuner_private.tuner_callback()):
        assert issubclass(kind, keras.callbacks.Callback)
    assert "filepath" in inspect.signature(keras_tuner_private.save_best_epoch()).parameters
    reports = inspect.signature(keras_tuner_private.tuner_callback()).parameters
    assert {"tuner", "trial"} <= reports.keys()


class Bell:
    def ring(self):
        return "ding"


def test_one_object_changes_and_is_put_back_after_an_error():
    bell, other = Bell(), Bell()
    with pytest.raises(RuntimeError), replaced_method(bell, "ring", lambda: "dong"):
        assert (bell.ring(), other.ring()) == ("dong", "ding")
        raise RuntimeError
    assert not vars(bell)
    assert bell.ring() == "ding"


def test_blocks_around_one_another_restore_in_their_order():
    bell = Bell()
    with replaced_method(bell, "ring", lambda: "outer"):
        with replaced_method(bell, "ring", lambda: "inner"):
            assert bell.ring() == "inner"
        assert bell.ring() == "outer"
    assert bell.ring() == "ding"
