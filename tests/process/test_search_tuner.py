"""Searches with kbatch's own tuner: KerasTuner's habits, rungs, budgets and resuming."""

import dataclasses
import json
import math
import os
import subprocess
import sys
import time

import keras
import keras_tuner
import pytest
from short_searches import SECONDS, SPACE, build

import kbatch
import kbatch.tuner
from kbatch.errors import ProjectChangedError, SearchError, SpaceError
from kbatch.results.loading import load_records
from kbatch.results.prospects import Prospects
from kbatch.search import oracle, tuner_border

# Set to "local" or "ray", these tests make their trainings there.
EXECUTOR = os.environ.get("KBATCH_TEST_EXECUTOR")
LEARNING_SECONDS = 3 * SECONDS  # in which good recipes part from poor ones on a busy machine too


def tuner_in(directory, **arguments):
    given = {"seconds_per_trial": SECONDS, "project_name": "p", "space": SPACE, **arguments}
    given.setdefault("executor", EXECUTOR)
    return kbatch.Tuner(given.pop("build", build), directory=directory, **given)


def search(tuner, points, **arguments):
    (x, y), validation = points
    tuner.search(x, y, **{"validation_data": validation, "verbose": 0, **arguments})
    return tuner


@pytest.fixture(scope="module")
def searched(points, tmp_path_factory):
    directory = tmp_path_factory.mktemp("searched")
    tuner = tuner_in(directory, seconds_per_trial=LEARNING_SECONDS)
    return search(tuner, points, max_trials=12), directory / "p"


def trials_of(project):
    return [record for record in load_records(project) if record.purpose == "search"]


def test_trials_are_stopped_at_the_rung_and_the_best_are_not(searched):
    tuner, project = searched
    ended = [record.outcome.ended for record in trials_of(project)]
    assert len(ended) == 12
    assert set(ended) == {"horizon", "stopped"}
    for record in trials_of(project):
        status = tuner.oracle.trials[f"{record.trial:04d}"].status
        assert status == {"horizon": "COMPLETED", "stopped": "STOPPED"}[record.outcome.ended]
        if record.outcome.ended == "stopped":
            assert record.outcome.train_seconds < 0.6 * LEARNING_SECONDS
            assert record.outcome.value is not None


@pytest.fixture
def repeating(monkeypatch, points, tmp_path):
    """A search that trains its leader again after two recipes, and its folder."""
    monkeypatch.setattr(oracle, "REPEATED_FROM", 2)
    monkeypatch.setattr(tuner_border, "widest_difference", lambda *_: math.inf)  # none is stopped
    return search(tuner_in(tmp_path, seed=5), points, max_trials=4), tmp_path / "p"


def test_a_leader_is_trained_again_with_another_seed(repeating, points, capsys):
    tuner, project = repeating
    trials = trials_of(project)
    again = [record for record in trials if record.seed != 5]
    assert again
    for record in again:
        (first,) = (other for other in trials if other.trial == record.repeats)
        assert (first.seed, record.seed) == (5, 100_005)
        assert (first.recipe, first.repeats) == (record.recipe, None)
        values = [[value for _, value in each.outcome.curve] for each in (first, record)]
        assert values[0] != values[1]
        assert record.outcome.ended == "horizon"
    best = kbatch.best_recipe(tuner)
    assert best in [record.recipe for record in again]
    (values,) = tuner.get_best_hyperparameters(1)
    assert values.get("batch_size") == best.batch_size
    assert "kbatch_repeat" not in values.values
    verdicts = [rank.verdict for rank in kbatch.report(tuner).ranks]
    assert any("mean of 2 trainings" in verdict for verdict in verdicts)
    assert any(verdict.endswith(" again") for verdict in verdicts)
    tuner.results_summary(99)
    shown = capsys.readouterr().out.count("\nTrial ")
    assert shown == sum(record.outcome.ended == "horizon" for record in trials) - len(again)
    kbatch.confirm(tuner, *points[0], validation_data=points[1], top=4, seeds=1, verbose=0)
    fresh = [record for record in load_records(project) if record.purpose == "confirmation"]
    assert len(fresh) == len({str(record.recipe) for record in fresh})


def test_a_repeat_is_made_once_and_answered_from_its_record(repeating, points):
    _, project = repeating
    before = load_records(project)
    for file in (*project.glob("*.json"), *project.glob("trial_*/trial.json")):
        file.unlink()
    search(tuner_in(project.parent, seed=5), points, max_trials=4)
    assert load_records(project) == before
    search(tuner_in(project.parent, seed=5), points, max_trials=6)
    repeated = [record.repeats for record in trials_of(project) if record.repeats is not None]
    assert len(repeated) == len(set(repeated))


def test_a_stopped_trial_keeps_what_it_is_worth_at_least(searched):
    for record in trials_of(searched[1]):
        goal = goal_of(searched[1])
        expected = kbatch.score(record.outcome.curve, goal["seconds"], chance=goal["chance"])
        assert record.score == expected


def goal_of(project):
    return json.loads((project / "kbatch" / "project.json").read_text())["goal"]


def test_the_margin_follows_from_the_validation_examples(searched, points):
    expected = 2 * math.sqrt(2 * 0.25 / len(points[1][0]))
    assert searched[0].oracle.margin == pytest.approx(expected)


def test_the_baseline_is_known_and_no_trial(points, tmp_path):
    baseline = kbatch.Recipe(64, "adam", 0.001)
    space = dataclasses.replace(SPACE, baseline=baseline)
    tuner = tuner_in(tmp_path, space=space, build=uncompiled, **LOSS)
    search(tuner, points, max_trials=3)
    first, *trials = load_records(tmp_path / "p")
    assert (first.purpose, first.recipe.batch_size) == ("baseline", 64)
    known = tuner.oracle._known
    assert known.score == first.score
    assert known.at_rung is not None
    assert known.values["batch_size"] == 64
    assert known.values["learning_rate_adam"] == pytest.approx(0.001 / 2**0.5)
    assert known.values["width"] == 8  # the default of `build`
    assert [record.recipe == first.recipe for record in trials] == [False] * 3


LOSS = {"loss": "binary_crossentropy", "metrics": ["accuracy"]}


def uncompiled(hp):
    width = hp.Int("width", 8, 24, step=8)
    return keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(1, "sigmoid")]
    )


def test_kerastuners_habits_hold(searched, capsys):
    tuner, project = searched
    assert isinstance(tuner, keras_tuner.Tuner)
    best = tuner.get_best_hyperparameters(2)
    assert best[0].values in [dict(record.values) for record in trials_of(project)]
    tuner.results_summary(3)
    assert "Score" in capsys.readouterr().out
    model = tuner.get_best_models(1)[0]
    assert isinstance(model, keras.Model)
    assert isinstance(kbatch.best_recipe(tuner), kbatch.Recipe)


def test_what_reads_a_search_knows_stopped_trials(searched):
    project = searched[1]
    table = kbatch.results.load(project)
    assert (table.ended == "stopped").sum() == table.ended.eq("stopped").sum() > 0
    text = str(kbatch.report(project))
    assert "stopped at a rung after" in text
    assert "≥ " in text
    assert "failed" not in text


def test_a_search_resumes_and_a_finished_one_trains_nothing(searched, points):
    tuner, project = searched
    file = project / "kbatch" / "records.jsonl"
    before = file.read_bytes()
    again = search(
        tuner_in(project.parent, seconds_per_trial=LEARNING_SECONDS), points, max_trials=8
    )
    assert file.read_bytes() == before
    assert again.oracle.get_state()["gained"] == tuner.oracle.get_state()["gained"]
    assert [trial.trial_id for trial in again.oracle.get_best_trials(9)] == [
        trial.trial_id for trial in tuner.oracle.get_best_trials(9)
    ]
    (x, y), validation = points
    with pytest.raises(ProjectChangedError, match=r"data\.training"):
        search(
            tuner_in(project.parent, seconds_per_trial=LEARNING_SECONDS),
            ((x + 1, y), validation),
            max_trials=8,
        )
    with pytest.raises(ProjectChangedError, match="signature"):
        search(
            tuner_in(project.parent, seconds_per_trial=LEARNING_SECONDS, build=wider),
            points,
            max_trials=8,
        )


def wider(hp):
    hp.Int("width", 8, 24, step=8)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def test_kerastuners_files_may_be_lost(points, tmp_path):
    search(tuner_in(tmp_path), points, max_trials=5)
    project = tmp_path / "p"
    first = [(record.key, record.outcome.ended) for record in trials_of(project)]
    (project / "oracle.json").unlink()
    for file in project.glob("trial_*/trial.json"):
        file.unlink()
    (project / "tuner0.json").unlink()
    search(tuner_in(tmp_path), points, max_trials=5)
    assert [(record.key, record.outcome.ended) for record in trials_of(project)] == first


def test_a_budget_ends_a_search(points, tmp_path):
    tuner = tuner_in(tmp_path)
    began = time.monotonic()
    search(tuner, points, budget=1.5)
    assert tuner.oracle.trials
    assert tuner.oracle.ends_at == pytest.approx(began + 1.5, abs=60)
    count = len(tuner.oracle.trials)
    search(tuner, points, budget="1s", max_trials=count)  # the smaller of both
    assert len(tuner.oracle.trials) == count


def test_a_search_ends_where_more_is_not_worth_it(points, tmp_path, monkeypatch, capsys):
    asked = []

    def prospects(records, goal, examples):
        asked.append(len(records))
        return Prospects(4.0, 0.9 if len(records) > 2 else None)  # two trials and the baseline

    monkeypatch.setattr(kbatch.tuner, "prospects_of", prospects)
    tuner = search(tuner_in(tmp_path, budget="auto"), points)
    assert asked == [2, 3]
    assert "The search ends. Another 10 horizons" in capsys.readouterr().out
    again = search(tuner_in(tmp_path), points, budget="auto")
    assert len(again.oracle.trials) == len(tuner.oracle.trials) == 2
    assert len(search(again, points, max_trials=3).oracle.trials) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "neither budget nor max_trials"),
        ({"max_trials": 0}, "max_trials"),
        ({"max_trials": 2.5}, "max_trials"),
        ({"budget": "soon"}, "budget"),
        ({"budget": -1}, "budget"),
        ({"budget": True}, "budget"),
        ({"budget": "3 days"}, "budget"),
        ({"budget": float("nan")}, "budget"),
    ],
)
def test_a_search_without_an_end_is_refused(points, tmp_path, arguments, words):
    tuner = tuner_in(tmp_path)
    with pytest.raises(SearchError, match=words):
        search(tuner, points, **arguments)
    assert not (tmp_path / "p" / "kbatch").exists()


def test_arguments_are_those_of_the_hypermodel(tmp_path):
    with pytest.raises(SpaceError):
        tuner_in(tmp_path, space="wide")
    with pytest.raises(TypeError):
        tuner_in(tmp_path, colour="red")
    for name, value in {"max_trials": 0, "budget": "soon"}.items():
        with pytest.raises(SearchError, match=name):
            tuner_in(tmp_path, **{name: value})
    with pytest.raises(SearchError, match="Leave it out, and pass metric="):
        tuner_in(tmp_path, objective="val_loss")
    hypermodel = kbatch.HyperModel(build, SPACE, seconds_per_trial=SECONDS)
    assert kbatch.Tuner(hypermodel, directory=tmp_path, project_name="h").hypermodel is hypermodel
    with pytest.raises(SearchError, match="seconds_per_trial, space beside it"):
        tuner_in(tmp_path, build=hypermodel)


def test_objective_and_end_may_stand_beside_the_model(points, tmp_path):
    tuner = tuner_in(tmp_path, objective=kbatch.objective(), budget="1h", max_trials=1)
    assert len(search(tuner, points).oracle.trials) == 1
    assert len(search(tuner, points, max_trials=2).oracle.trials) == 2


def test_a_small_space_comes_to_an_end(points, tmp_path):
    space = kbatch.Space(batch_size=(16, 32), optimizer="sgd", learning_rate={"sgd": 0.01})
    tuner = tuner_in(tmp_path, space=space, build=narrow)
    search(tuner, points, budget="5min")
    assert len(tuner.oracle.trials) <= 2


def narrow():
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def test_users_callbacks_see_every_trial(points, tmp_path):
    search(tuner_in(tmp_path), points, max_trials=3, callbacks=[Counter(tmp_path / "ends")])
    assert (tmp_path / "ends").read_text() == "x" * 4  # with the baseline


class Counter(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path = str(path)

    def on_train_end(self, logs=None):
        with open(self.path, "a") as ends:
            ends.write("x")


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_the_same_holds_with_an_executor(executor):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "KBATCH_TEST_EXECUTOR": executor}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
