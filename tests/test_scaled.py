"""Recipes of a space carry the values at batch 32 to the batch size, each by its own rule."""

import math

import keras_tuner
import pytest

from kbatch import Space
from kbatch.errors import SpaceError

SIZES = (8, 32, 128, 1024)


def recipe(batch_size, **axes):
    """The recipe of a space with one value on each axis."""
    told = {"optimizer": "adam", "learning_rate": {"adam": 0.01}, "policy": "float32"}
    space = Space(**{**told, "jit_compile": False, "batch_size": batch_size, **axes})
    return space.recipe(keras_tuner.HyperParameters(), examples=1200)


@pytest.mark.parametrize("batch", SIZES)
def test_values_follow_their_rules(batch):
    ratio = batch / 32
    made = recipe(
        batch,
        weight_decay=0.01,
        dropout_scale=0.5,
        dropout_rule="sqrt",
        momentum=0.8,
        ema=0.95,
        momentum_rule="examples",
    )
    assert made.learning_rate == pytest.approx(0.01 * math.sqrt(ratio))
    assert made.weight_decay == pytest.approx(0.01 * math.sqrt(ratio))
    assert made.dropout_scale == pytest.approx(0.5 * math.sqrt(ratio))
    assert made.momentum == pytest.approx(0.8**ratio)
    assert made.ema == pytest.approx(0.95**ratio)


@pytest.mark.parametrize("batch", SIZES)
def test_values_stay_by_the_rule_constant(batch):
    fixed = {"weight_decay": 0.01, "dropout_scale": 0.5, "momentum": 0.8, "ema": 0.95}
    made = recipe(batch, **fixed, weight_decay_rule="constant")
    assert {name: getattr(made, name) for name in fixed} == fixed


def test_values_follow_the_whole_batch_not_the_pass():
    whole = recipe(256, weight_decay=0.01, ema=0.9, momentum_rule="examples")
    passes = recipe(256, weight_decay=0.01, ema=0.9, momentum_rule="examples", micro_batch_size=16)
    assert passes.accumulation_steps == 16
    for name in ("learning_rate", "weight_decay", "momentum", "ema", "warmup_updates"):
        assert getattr(passes, name) == getattr(whole, name)


def test_settings_of_an_optimizer_are_the_models_own_if_compiled():
    space = Space(
        optimizer=("adam", "compiled"),
        weight_decay=0.1,
        momentum=0.5,
        clip_norm=1.0,
        schedule="cosine",
        batch_schedule="linear:4",
        training="sam:0.1",
        ema=0.9,
        policy="float32",
        jit_compile=False,
    )
    hp = keras_tuner.HyperParameters()
    space.declare(hp)
    hp.values["optimizer"] = "compiled"
    made = space.recipe(hp, examples=1200)
    assert (made.optimizer, made.training, made.ema) == ("compiled", "sam:0.1", 0.9)
    assert made.learning_rate is None
    assert (made.weight_decay, made.momentum, made.clip_norm) == (0.0, 0.9, None)
    assert (made.schedule, made.batch_schedule) == ("constant", "constant")


def test_none_is_a_value_of_a_searched_axis():
    hp = keras_tuner.HyperParameters()
    assert Space(clip_norm=(0, 1.0)).clip_norm == (None, 1.0)
    with pytest.raises(SpaceError, match="each once"):
        Space(ema=(None, 0.0))
    space = Space(clip_norm=(None, 1.0), ema=(None, 0.9), jit_compile=False, policy="float32")
    space.declare(hp)
    held_by_name = {axis.name: axis.values for axis in hp.space if axis.name != "batch_size"}
    assert held_by_name["clip_norm"] == [0.0, 1.0]
    assert held_by_name["ema"] == [0.0, 0.9]
    for held, wanted in ((0.0, None), (1.0, 1.0)):
        hp.values["clip_norm"] = held
        assert space.recipe(hp).clip_norm == wanted


def test_growing_batches_exclude_xla():
    assert Space(batch_schedule="linear:4").compilations == (False,)
    with pytest.raises(SpaceError, match=r"without XLA.*Received: .*linear:4.*\. Pass"):
        Space(batch_schedule=("constant", "linear:4"), jit_compile=(False, True))


def test_growing_batches_follow_the_usual_rule():
    Space(batch_schedule="linear:4", learning_rate_rule={"sgd": "linear"})
    for rule in ("constant", "gain:480"):
        with pytest.raises(SpaceError, match=r"usual rule.*Received: .*sgd"):
            Space(batch_schedule="linear:4", learning_rate_rule={"sgd": rule})


def test_old_facts_do_not_name_the_new_axes():
    told = Space(optimizer=("sgd", "adam"), policy="float32", jit_compile=False).to_dict()
    assert set(told["learning_rate"]) == set(told["learning_rate_rule"]) == {"sgd", "adam"}
    assert not {"weight_decay", "momentum_rule", "training", "ema"} & set(told)
    more = Space(optimizer="lamb", ema=0.9, policy="float32", jit_compile=False).to_dict()
    assert (more["ema"], set(more["learning_rate"])) == ((0.9,), {"sgd", "adam", "lamb"})
