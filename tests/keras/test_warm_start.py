"""Warm starts: what an earlier search tells, at another horizon and in another space."""

import dataclasses
import json

import keras
import keras_tuner
import pytest
from result_records import GOAL, failed, record
from short_searches import SECONDS, SPACE, build

import kbatch
from kbatch import tuner
from kbatch.errors import SearchError
from kbatch.results.loading import load_records
from kbatch.search import proposals


def space_of(sizes=(16, 32)):
    hp = keras_tuner.HyperParameters()
    hp.Choice("batch_size", list(sizes))
    hp.Float("rate", 1e-3, 1e-1, sampling="log")
    with hp.conditional_scope("batch_size", [sizes[0]]):
        hp.Boolean("small")
    return hp.space


VALUES = {"batch_size": 32, "rate": 0.01}
FITTING = {
    "as drawn": (VALUES, True),
    "with what is inactive": ({**VALUES, "small": True}, True),
    "another size": ({**VALUES, "batch_size": 64}, False),
    "out of the range": ({**VALUES, "rate": 0.5}, False),
    "no rate": ({"batch_size": 32}, False),
    "a part is missing": ({**VALUES, "batch_size": 16}, False),
    "of another type": ({**VALUES, "rate": "high"}, False),
}


@pytest.mark.parametrize("kind", FITTING)
def test_only_values_that_the_space_draws_are_of_use(kind):
    values, drawn = FITTING[kind]
    assert proposals.can_draw(space_of(), values) == drawn


def test_a_curve_is_scored_at_the_new_horizon():
    one = record(0, 0.4, values=VALUES)
    same = tuner.observation(one, GOAL, space_of())
    assert same.score == pytest.approx(one.score)
    assert same.at_rung is not None
    half = dataclasses.replace(GOAL, seconds=GOAL.seconds / 2)
    shorter = tuner.observation(one, half, space_of())
    cut = [point for point in one.outcome.curve if point[0] <= half.seconds * tuner.LATE]
    assert shorter.score == pytest.approx(kbatch.score(cut, half.seconds, half.chance))
    assert shorter.at_rung != same.at_rung
    longer = tuner.observation(one, dataclasses.replace(GOAL, seconds=40.0), space_of())
    assert longer.score is None
    assert longer.at_rung is None


def test_what_was_stopped_has_its_rung_only():
    one = record(0, 0.4, values=VALUES, ended="stopped")
    assert tuner.observation(one, GOAL, space_of()).score is None


@pytest.fixture(scope="module")
def earlier(points, tmp_path_factory):
    folder = tmp_path_factory.mktemp("earlier")
    (x, y), validation = points
    tuner = keras_tuner.RandomSearch(
        kbatch.HyperModel(build, SPACE, seconds_per_trial=SECONDS),
        kbatch.objective(),
        4,
        directory=folder,
        project_name="p",
    )
    tuner.search(x, y, validation_data=validation, verbose=0)
    return folder / "p"


def tuner_in(folder, model=build, **arguments):
    return kbatch.Tuner(
        model, SPACE, seconds_per_trial=SECONDS, directory=folder, project_name="q", **arguments
    )


@pytest.mark.parametrize("many", [False, True])
def test_a_tuner_begins_with_what_was_seen(earlier, points, tmp_path, capsys, many):
    (x, y), validation = points
    before = [str(earlier), earlier] if many else earlier
    tuner = tuner_in(tmp_path, warm_start=before)
    tuner.search(x, y, validation_data=validation, max_trials=2, verbose=0)
    said = capsys.readouterr().out
    assert said.count(f"warm start: 4 of 4 trainings in {earlier} are of use") == 1 + many
    assert len(tuner.oracle._earlier) == 4 * (1 + many)
    assert len(tuner.oracle.trials) == 2
    assert len(tuner.oracle.get_best_trials(9)) <= 2  # none of the earlier ones


def wider():
    layers = [keras.layers.Dense(50, "relu"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.Input((12,)), *layers])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def test_another_model_is_refused(earlier, points, tmp_path):
    (x, y), validation = points
    with pytest.raises(SearchError, match=r"same model.*with another signature"):
        tuner_in(tmp_path, wider, warm_start=earlier).search(
            x, y, validation_data=validation, max_trials=1, verbose=0
        )


def test_what_failed_tells_nothing(earlier, tmp_path):
    facts = json.loads((earlier / "kbatch" / "project.json").read_text())
    one = record(0, 0.4, values=VALUES)
    assert tuner._is_sound(one, space_of())
    assert not tuner._is_sound(failed(one), space_of())
    assert tuner.observations(earlier, facts, space_of()) == []  # of another space


def test_the_best_for_another_model_comes_early(earlier, points, tmp_path, capsys):
    (x, y), validation = points
    best = kbatch.best_recipe(earlier)
    learner = tuner_in(tmp_path, wider, learn_from=[earlier, str(earlier)])
    learner.search(x, y, validation_data=validation, max_trials=4, verbose=0)
    assert capsys.readouterr().out.count(f"learned: the best of {earlier} was {best}") == 2
    recipes = [record.recipe for record in load_records(learner)]
    rates = {each.learning_rate for each in recipes if each.batch_size == best.batch_size}
    assert min(abs(rate / best.learning_rate - 1) for rate in rates if rate) < 1e-6


@pytest.mark.parametrize(
    ("sizes", "optimizer", "told"),
    [
        (SPACE.batch_size, SPACE.optimizer, ("batch_size ", "optimizer ")),
        (SPACE.batch_size, "lamb", ("batch_size ",)),
        ((8, 512), "lamb", ("nothing",)),
    ],
    ids=["all", "a part", "nothing"],
)
def test_what_is_drawn_of_the_best_is_told(earlier, sizes, optimizer, told, capsys):
    space = kbatch.Space(batch_size=sizes, optimizer=optimizer, policy="float32")
    tuner.best_elsewhere([earlier], space)
    said = capsys.readouterr().out.partition("of it this space draws ")[2]
    assert [each in said for each in told] == [True] * len(told)
    assert ("optimizer " in said) == ("optimizer " in told)


@pytest.mark.parametrize("name", ["warm_start", "learn_from"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "must be the path of a project, or a list of them"),
        ("none", "must hold searches: none must hold the records of one search.*no such folder"),
        ([3], "must hold searches: A search must be given as its tuner or its folder"),
    ],
)
def test_what_holds_no_search_is_refused(name, given, words, tmp_path):
    with pytest.raises(SearchError, match=f"`{name}` {words}"):
        tuner_in(tmp_path, **{name: given})
    assert not list(tmp_path.iterdir())
