"""Each private name of this library that kbatch uses is still there and does what kbatch needs."""

import re

import keras
import numpy as np
import pytest

from kbatch.runtime import keras_private


def small(**settings):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="one")])
    model.compile(keras.optimizers.SGD(0.1, **settings), "mse", metrics=["mae"])
    return model


def test_accumulated_gradients_and_passes_are_those_of_the_optimizer():
    model = small(gradient_accumulation_steps=2)
    model.train_on_batch(np.ones((1, 2)), np.ones((1, 1)))
    sums = keras_private.accumulated_gradients(model.optimizer)
    assert [tuple(total.shape) for total in sums] == [(2, 1), (1,)]
    assert any(np.any(keras.ops.convert_to_numpy(total)) for total in sums)
    assert int(keras_private.passes(model.optimizer)) == 1
    assert int(model.optimizer.iterations) == 0


def test_compile_arguments_are_those_of_the_user():
    arguments = keras_private.compile_arguments(small())
    assert arguments["loss"] == "mse"
    assert arguments["metrics"] == ["mae"]
    assert isinstance(arguments["optimizer"], keras.optimizers.SGD)


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


def test_flatten_layers_reaches_nested_layers():
    inner = keras.Sequential([keras.layers.Dense(1, name="inside")])
    model = keras.Sequential([keras.Input((2,)), inner])
    names = [layer.name for layer in keras_private.flatten_layers(model)]
    assert names[0] == model.name
    assert "inside" in names


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


def test_mask_of_a_masked_tensor():
    inputs = keras.Input((3,), dtype="int32")
    masked = keras.layers.Embedding(4, 2, mask_zero=True)(inputs)
    assert keras_private.mask_of(masked) is not None
    assert keras_private.mask_of(inputs) is None
