"""Each private name of this library that kbatch uses is still there and does what kbatch needs."""

import keras
import pytest

from kbatch.runtime import keras_private


def layers():
    return [keras.Input((3,)), keras.layers.Dense(2, name="head")]


def test_the_outputs_of_a_sequential_have_names():
    assert keras_private.output_names(keras.Sequential(layers())) == ("head",)


def test_the_outputs_of_a_functional_model_have_names():
    inputs, head = layers()
    model = keras.Model(inputs, {"first": head(inputs), "second": head(inputs)})
    assert len(keras_private.output_names(model)) == 2


def test_a_model_without_a_graph_has_no_names_of_outputs():
    assert keras_private.output_names(None) == ()
    assert keras_private.output_names(keras.Sequential([keras.layers.Dense(2)])) == ()


@pytest.mark.parametrize("schedule", [True, False])
def test_a_schedule_of_an_optimizer_is_seen(schedule):
    rate = keras.optimizers.schedules.CosineDecay(0.1, 10) if schedule else 0.1
    assert keras_private.has_schedule(keras.optimizers.SGD(rate)) is schedule
