"""What SAM and the proximal method refuse, by name."""

import keras
import method_models
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch import Recipe
from kbatch.errors import ModelError
from kbatch.models.compilation import CompileArguments, lacking
from kbatch.models.maker import ModelMaker
from kbatch.models.train_step import trained_by_method

METHODS = ("sam:0.05", "proximal:0.1")
LOSS = CompileArguments(method_models.SPARSE(True))


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


def own_step():
    return OwnStep([keras.Input((5,)), keras.layers.Dense(3)])


def compiled(**arguments):
    return method_models.compiled_with(keras.optimizers.SGD(**arguments))


@pytest.mark.parametrize("method", METHODS)
def test_a_train_step_of_the_users(method):
    with pytest.raises(ModelError, match=r"OwnStep\.train_step.*compute_loss"):
        ModelMaker(own_step, LOSS).make(Recipe(training=method))
    assert ModelMaker(own_step, LOSS).make(Recipe()).compiled


@pytest.mark.parametrize("method", METHODS)
def test_a_distribution_strategy(method):
    recipe = Recipe(training=method)
    model = ModelMaker(method_models.dense, LOSS).make(recipe)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        with pytest.raises(ModelError, match="OneDeviceStrategy"):
            ModelMaker(method_models.dense, LOSS).make(recipe)
        with (
            pytest.raises(ModelError, match="on one device"),
            trained_by_method(model, recipe),
        ):
            pass


@pytest.mark.parametrize("method", METHODS)
def test_an_optimizer_that_accumulates_by_itself(method):
    build = compiled(learning_rate=0.1, gradient_accumulation_steps=4)
    with pytest.raises(ModelError, match="gradient_accumulation_steps=4"):
        ModelMaker(build).make(Recipe(32, "compiled", None, training=method))


def test_a_schedule_would_count_inner_steps():
    def build():
        decay = keras.optimizers.schedules.CosineDecay(0.1, 100)
        return method_models.compiled_with(keras.optimizers.SGD(decay))()

    refused, allowed = (
        Recipe(32, "compiled", None, training=method) for method in ("proximal:0.1", "sam:0.05")
    )
    with pytest.raises(ModelError, match="CosineDecay"):
        ModelMaker(build).make(refused)
    assert ModelMaker(build).make(allowed).compiled
    named = Recipe(training="proximal:0.1")  # replaces the compiled optimizer and its schedule
    assert ModelMaker(build).make(named).compiled


def test_sums_of_losses_are_refused_in_passes_only():
    summed = CompileArguments(method_models.SPARSE(True, reduction="sum"))
    for method in METHODS:
        whole = Recipe(32, training=method)
        assert ModelMaker(method_models.dense, summed).make(whole).compiled
        with pytest.raises(ModelError, match="mean over the batch"):
            ModelMaker(method_models.dense, summed).make(
                Recipe(32, training=method, micro_batch_size=8)
            )


@pytest.mark.parametrize("method", METHODS)
def test_scales_of_float8_are_no_weights(method):
    def build():
        model = method_models.dense()
        model.layers[0].quantize("float8")
        return model

    with pytest.raises(ModelError, match="scales of float8"):
        ModelMaker(build, LOSS).make(Recipe(training=method))


def test_a_norm_over_several_types_is_refused():
    def mixed():
        last = keras.layers.Dense(2, "softmax", dtype="float64")
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), last])

    arguments = CompileArguments("sparse_categorical_crossentropy", ["accuracy"])
    recipe = Recipe(32, "sgd", 0.1, clip_norm=0.5)
    with pytest.raises(ModelError, match="of one type.*clip_norm=0.5 and weights of float32 and"):
        ModelMaker(mixed, arguments).make(recipe)
    x, y = np.ones((32, 4)), np.arange(32) % 2
    data = (x, y, (x, y))
    named = {"loss": arguments.loss, "metrics": ["accuracy"], "epochs": 1}
    kbatch.train(Recipe(32, "sgd", 0.1, training="sam:0.05"), mixed, *data, **named)


def test_a_model_compiled_for_a_plain_fit_lacks_the_method():
    recipe = Recipe(64, training="sam:0.05", micro_batch_size=16)
    assert "its batch size (64), its training method (sam:0.05)" in lacking(recipe)
