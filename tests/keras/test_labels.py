"""A sample that is completed from the model: labels of its outputs, inputs of its `keras.Input`."""

import keras
import memory_models
import numpy as np
import pytest
from keras import layers

from kbatch.errors import DataError
from kbatch.memory import _worker


def test_inputs_come_in_the_models_own_structure_and_types():
    (inputs,) = _worker.checked_labels(memory_models.two_outputs(), ())
    assert {name: (part.shape, part.dtype.name) for name, part in inputs.items()} == {
        "a": ((1, 8), "float32"),
        "b": ((1, 4, 4, 1), "float32"),
    }
    (tokens,) = _worker.checked_labels(memory_models.recurrent(), ())
    assert (tokens.shape, tokens.dtype.name) == ((1, 50), "int32")


def test_inputs_of_text_can_be_trained_on():
    words = keras.Input((1,), dtype="string")
    model = keras.Model(words, layers.Dense(2)(layers.Embedding(8, 4)(layers.Hashing(8)(words))))
    model.compile("sgd", "mse")
    inputs, made = _worker.completed_labels(model, _worker.checked_labels(model, ()))
    (words,) = keras.tree.flatten(inputs)
    assert (words.shape, words.dtype.kind) == ((1, 1), "S")
    loss = model.train_on_batch(keras.tree.map_structure(keras.ops.convert_to_tensor, inputs), made)
    assert np.isfinite(loss)


def test_labels_fit_the_outputs_and_their_losses():
    model = memory_models.two_outputs()
    _, made = _worker.completed_labels(model, _worker.checked_labels(model, ()))
    assert {name: (part.shape, part.dtype.name) for name, part in made.items()} == {
        "kind": ((1,), "int32"),
        "size": ((1, 1), "float32"),
    }


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            memory_models.shapeless,
            "A model without a keras.Input must be given the shape of one example",
        ),
        (
            memory_models.open_sizes,
            (
                r"leaves sizes open must be given the shape of one example. "
                r"Received: \(None, None, 3\)"
            ),
        ),
    ],
)
def test_a_model_that_does_not_tell_its_shape_is_refused(model, says):
    with pytest.raises(DataError, match=says):
        _worker.checked_labels(model(), ())


def test_examples_of_another_shape_are_refused():
    with pytest.raises(DataError, match="shape of the model's input"):
        _worker.checked_labels(memory_models.uncompiled(), (np.zeros((1, 13)),))
