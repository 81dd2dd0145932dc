"""A training as a session of TensorBoard: what its events hold, from records made by hand."""

import keras_tuner
import pytest
from tensorboard.plugins.hparams import api_pb2, metadata

from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.records.store import BASELINE_TRIAL, Record
from kbatch.training.tensorboard import Session, experiment, hparams_of

CURVE = ((0.25, 0.5), (1.0, 0.75))
OUTCOME = Outcome(
    *("horizon", CURVE, 0.75),
    train_seconds=1.0,
    examples=640,
    updates=20,
    seconds={"total": 3.0},
    curve_updates=(5, 20),
)
SGD = Recipe(batch_size=64, optimizer="sgd", learning_rate=0.2, weight_decay=0.02)
DRAWN = {"optimizer": "sgd", "learning_rate_sgd": 0.1, "learning_rate_adam": 0.001}


def record(outcome=OUTCOME, purpose="search", trial=3, recipe=SGD, seed=0, **fields):
    at = "2026-11-23T22:00:10+00:00"
    return Record("k", purpose, trial, seed, recipe, outcome, 0.25, finished_at=at, **fields)


def scalars(session):
    return {
        (value.tag, event.step): value.simple_value
        for event in session.events()
        for value in event.summary.value
        if value.WhichOneof("value") == "simple_value"
    }


def status(session):
    data = session.events()[-1].summary.value[0].metadata.plugin_data.content
    return metadata.parse_session_end_info_plugin_data(data).status


def columns(declared, sessions=()):
    (event,) = experiment(declared, sessions, "val_auc")
    found = metadata.parse_experiment_plugin_data(
        event.summary.value[0].metadata.plugin_data.content
    )
    return {info.name: info for info in found.hparam_infos}


def values(info):
    return [getattr(each, each.WhichOneof("kind")) for each in info.domain_discrete.values]


def test_a_session_has_the_curve_twice_and_the_final_numbers():
    assert scalars(Session.of(record(), "val_auc")) == {
        ("curve/val_auc", 5): 0.5,
        ("curve/val_auc", 20): 0.75,
        ("curve_over_milliseconds/val_auc", 250): 0.5,
        ("curve_over_milliseconds/val_auc", 1000): 0.75,
        ("final/score", 20): 0.25,
        ("final/val_auc", 20): 0.75,
        ("final/train_seconds", 20): 1.0,
        ("final/examples_per_second", 20): 640.0,
    }  # the device did not tell its bytes


def test_relative_time_is_training_seconds():
    events = Session.of(record(), "val_auc").events()
    ended = events[-1].wall_time
    assert events[0].wall_time == ended - 3.0
    by_curve = {e.step: e.wall_time - events[0].wall_time for e in events if e.step in (250, 1000)}
    assert by_curve == {250: 0.25, 1000: 1.0}


def test_a_record_of_an_old_version_has_no_curve_over_updates():
    old = Outcome("horizon", CURVE, 0.75, train_seconds=1.0)
    tags = {tag for tag, _ in scalars(Session.of(record(old), "val_auc"))}
    assert "curve_over_milliseconds/val_auc" in tags
    assert "curve/val_auc" not in tags


@pytest.mark.parametrize("ended", ["out_of_memory", "nan", "crashed"])
def test_a_training_that_failed_is_a_failed_row_without_a_value(ended):
    session = Session.of(record(Outcome(ended, message="…")), "val_auc")
    assert status(session) == api_pb2.STATUS_FAILURE
    assert "final/val_auc" not in {tag for tag, _ in scalars(session)}


@pytest.mark.parametrize("ended", ["horizon", "target", "callback"])
def test_a_training_that_ended_well_is_a_row_that_succeeded(ended):
    session = Session.of(record(Outcome(ended, CURVE, 0.75)), "val_auc")
    assert status(session) == api_pb2.STATUS_SUCCESS


def test_names_tell_baseline_trials_and_confirmations_apart():
    found = [
        record(),
        record(purpose="baseline", trial=BASELINE_TRIAL),
        record(purpose="confirmation", seed=1),
        record(purpose="confirmation", trial=BASELINE_TRIAL, seed=2),
    ]
    sessions = [Session.of(each, "val_auc") for each in found]
    assert [each.run for each in sessions] == [
        *("3", "baseline", "confirmation_trial3_seed1", "confirmation_baseline_seed2")
    ]
    assert [each.group for each in sessions] == [
        *("3", "baseline", "3, confirmed", "baseline, confirmed")
    ]


def test_drawn_values_come_before_those_scaled_to_the_batch():
    drawn = {**DRAWN, "weight_decay": 0.014, "width": 64, "bad \n name": "x"}
    hparams = hparams_of(record(values=drawn, learning_rate_at_32=0.1))
    assert hparams["weight_decay"] == 0.014
    assert hparams["learning_rate"] == 0.2
    assert hparams["learning_rate_sgd"] == 0.1
    assert "learning_rate_adam" not in hparams  # a value of the other optimizer
    assert (hparams["width"], hparams["bad \n name"]) == (64, "x")


def test_a_baseline_of_the_users_optimizer_has_the_rate_it_used():
    recipe = Recipe(optimizer="compiled", learning_rate=None)
    outcome = Outcome("horizon", learning_rate=0.01)
    hparams = hparams_of(record(outcome, "baseline", BASELINE_TRIAL, recipe))
    assert (hparams["optimizer"], hparams["learning_rate"]) == ("compiled", 0.01)
    assert (hparams["clip_norm"], hparams["ema"]) == (0.0, 0.0)  # none, as KerasTuner holds it
    without = hparams_of(record(Outcome("nan"), "baseline", BASELINE_TRIAL, recipe))
    assert "learning_rate" not in without


def test_domains_are_intervals_of_ranges_and_lists_of_choices():
    hp = keras_tuner.HyperParameters()
    hp.Int("units", 8, 64, step=8)
    hp.Float("rate", 1e-4, 1e-1, sampling="log", step=10)
    hp.Boolean("deep")
    hp.Choice("head", ["tanh", "relu"])
    hp.Fixed("fixed", 3)
    with hp.conditional_scope("deep", [True]):
        hp.Choice("kind", [1, 2])
    with hp.conditional_scope("deep", [False]):
        hp.Choice("kind", [2, 3])
    found = columns(hp.space)
    intervals = {
        name: (info.domain_interval.min_value, info.domain_interval.max_value)
        for name, info in found.items()
        if info.WhichOneof("domain") == "domain_interval"
    }
    assert intervals == {"units": (8, 64), "rate": (1e-4, 0.1), "learning_rate": (0, 100)}
    assert values(found["deep"]) == [False, True]
    assert values(found["head"]) == ["relu", "tanh"]
    assert values(found["fixed"]) == [3]
    assert values(found["kind"]) == [1, 2, 3]


def test_a_value_outside_of_the_space_widens_a_list():
    hp = keras_tuner.HyperParameters()
    hp.Choice("batch_size", [64, 128])
    hp.Choice("optimizer", ["sgd", "adam"])
    recipe = Recipe(batch_size=48, optimizer="compiled", learning_rate=None)
    baseline = Session.of(record(OUTCOME, "baseline", BASELINE_TRIAL, recipe), "val_auc")
    found = columns(hp.space, [baseline])
    assert values(found["batch_size"]) == [48, 64, 128]
    assert values(found["optimizer"]) == ["adam", "compiled", "sgd"]
