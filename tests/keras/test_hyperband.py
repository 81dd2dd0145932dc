"""KerasTuner's Hyperband: a bracket's epochs are a share of the horizon."""

import keras_tuner
import pytest
from short_searches import SPACE, build, search

import kbatch
from kbatch import HyperModel, Recipe
from kbatch.models.maker import ModelMaker
from kbatch.outcome import Goal
from kbatch.records.project import Project
from kbatch.results.ranking import best_training
from kbatch.search.rungs import Share
from kbatch.training.trial import job_of_repeat

EPOCHS = 3


@pytest.fixture(scope="module")
def tuner(points, tmp_path_factory):
    tuner = keras_tuner.Hyperband(
        HyperModel(build, SPACE),
        objective=kbatch.objective(),
        max_epochs=EPOCHS,
        directory=tmp_path_factory.mktemp("hyperband"),
        project_name="p",
        seed=0,
    )
    search(tuner, points)
    return tuner


@pytest.fixture(scope="module")
def trials(tuner):
    records = Project(tuner.project_dir).store.records()
    return {each.trial: each for each in records if each.purpose == "search"}


def noted(tuner, number):
    return tuner.oracle.trials[f"{number:04d}"].hyperparameters.values


def test_a_share_ends_where_a_value_is_held_first():
    goes_on = Share(1 / 9).question(9.0)
    assert goes_on([(0.5, 0.1), (1.5, 0.2)])  # two measurements hold nothing
    assert goes_on([(0.1, 0.1), (0.5, 0.2), (0.9, 0.3)])
    assert not goes_on([(0.1, 0.1), (0.5, 0.2), (1.0, 0.3)])


def test_a_record_holds_what_was_drawn_and_the_epochs():
    hp = keras_tuner.HyperParameters()
    noted = {"tuner/epochs": 3, "tuner/bracket": 1, "learning_rate": 0.1}  # of build, not drawn
    hp.values = {"batch_size": 32, **noted}
    job = job_of_repeat(hp, ModelMaker(build), 0, Recipe(), None, ())
    assert job.values == {"batch_size": 32, "tuner/epochs": 3}


def test_the_horizon_is_the_epochs_of_all_brackets(tuner):
    assert Project(tuner.project_dir).facts()["epochs"] == EPOCHS


def test_a_trial_trains_its_share_of_the_horizon(tuner, trials):
    horizon = Goal.from_dict(Project(tuner.project_dir).facts()["goal"]).seconds
    shares = {number: noted(tuner, number)["tuner/epochs"] / EPOCHS for number in trials}
    assert set(shares.values()) == {1 / EPOCHS, 1}
    endings = {share: trials[number].outcome.ended for number, share in shares.items()}
    assert endings == {1 / EPOCHS: "stopped", 1: "horizon"}
    for number in (number for number, share in shares.items() if share < 1):
        share, outcome = shares[number], trials[number].outcome
        assert outcome.curve[-1][0] >= share * horizon
        assert len(outcome.curve) == 3 or outcome.curve[-2][0] < share * horizon


def test_more_epochs_are_the_shorter_trial_begun_anew(tuner, trials):
    number = next(number for number in trials if noted(tuner, number)["tuner/round"] == 1)
    own = trials[number]
    shorter = [
        each
        for each in trials.values()
        if each.recipe == own.recipe and each.outcome.ended == "stopped"
    ]
    assert shorter
    assert all(each.seed == own.seed for each in shorter)
    assert own.outcome.curve[0][0] < own.outcome.curve[-1][0] / 2


def test_the_best_has_trained_to_the_horizon(tuner):
    assert best_training(tuner.project_dir).outcome.ended == "horizon"
    assert tuner.get_best_models()[0].optimizer is not None


def test_a_confirmation_is_answered_whatever_the_bracket(tuner):
    kbatch.confirm(tuner, top=1, seeds=1)
    records = Project(tuner.project_dir).store.records()
    confirmed = [each for each in records if each.purpose == "confirmation"]
    assert confirmed
    assert all(each.outcome.ended == "horizon" for each in confirmed)
