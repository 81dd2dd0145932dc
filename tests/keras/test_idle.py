"""Hyperparameters of a user that change the optimizer only, found by building two models each."""

import keras
import keras_tuner

from kbatch.models.maker import ModelMaker, idle, idle_sentence


def build(hp):
    decay = keras.regularizers.L2(hp.Float("weight_decay", 0.0, 0.1, step=0.05))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_regularizer=decay)])
    momentum = hp.Choice("momentum", [0.0, 0.9])
    model.compile(keras.optimizers.SGD(hp.Choice("lr", [0.1, 0.2]), momentum), "mse")
    hp.Choice("learning_unused", [1, 2])
    hp.Choice("units", [1, 2])
    return model


def declared():
    hp = keras_tuner.HyperParameters()
    build(hp)
    return hp.space


def test_only_what_changes_the_optimizer_alone_is_idle():
    assert set(idle(ModelMaker(build), "float32", declared())) == {"lr", "momentum"}


def test_reserved_names_and_uncompiled_models_are_left_alone():
    maker = ModelMaker(build, reserved=frozenset({"momentum"}))
    axes = [axis for axis in declared() if axis.name == "momentum"]
    assert idle(maker, "float32", axes) == ()

    def uncompiled(hp):
        hp.Choice("lr", [0.1, 0.2])
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    axes = [axis for axis in declared() if axis.name == "lr"]
    assert idle(ModelMaker(uncompiled), "float32", axes) == ()


def test_the_baseline_is_told_apart():
    words = idle_sentence(["lr"], {"lr": 0.1, "units": 2})
    assert "no effect in trials" in words
    assert "Only the baseline's own optimizer has them: lr=0.1." in words
