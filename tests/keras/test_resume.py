"""A search that is begun again: what it answers from its records, and what it refuses."""

import shutil

import keras
import pytest
from short_searches import build, search, tuner_of

from kbatch import Space
from kbatch.errors import ProjectChangedError, SearchError
from kbatch.records.project import Project
from kbatch.results.loading import load_records
from kbatch.runtime import device_memory


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the search that all tests share."""
    return shutil.copytree(finished, tmp_path, dirs_exist_ok=True)


def test_a_search_goes_on_where_it_was(copied, points, tmp_path):
    first = load_records(tmp_path / "p")
    search(tuner_of(tmp_path, max_trials=3, seed=1), points)
    assert load_records(tmp_path / "p")[:3] == first
    assert len(load_records(tmp_path / "p")) == 4


def test_records_answer_for_trials_that_keras_tuner_forgot(copied, points, tmp_path):
    first = load_records(tmp_path / "p")
    for file in [*(tmp_path / "p").glob("*.json"), *(tmp_path / "p").glob("trial_*/trial.json")]:
        file.unlink()
    tuner = search(tuner_of(tmp_path, seed=1), points)
    assert load_records(tmp_path / "p") == first
    assert tuner.oracle.get_best_trials()[0].score == max(
        record.score for record in first if not record.baseline
    )
    assert tuner.get_best_models()[0].evaluate(*points[1], verbose=0)[1] == pytest.approx(
        max(first[1:], key=lambda r: r.score).outcome.value
    )


def test_a_recipe_drawn_again_has_the_first_record_and_weights(points, tmp_path):
    tuner = tuner_of(tmp_path, max_trials=3, seed=1)
    first = tuner.oracle.populate_space("0")
    tuner.oracle.populate_space = lambda trial_id: {**first, "values": dict(first["values"])}
    search(tuner, points)
    assert [record.trial for record in load_records(tmp_path / "p")] == [-1, 0]
    best = tuner.oracle.get_best_trials(3)
    assert len({trial.score for trial in best}) == 1
    values = {model.evaluate(*points[1], verbose=0)[1] for model in tuner.get_best_models(3)}
    assert len(values) == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"space": Space(batch_size=(16, 32), policy="float32")}, "space.batch_size was"),
        ({"seconds": 0.5}, "seconds_per_trial was 0.25 and is now 0.5"),
        ({"model_seed": 3}, "seed was 0 and is now 3"),
        ({"target": 0.9}, "target was None and is now 0.9"),
    ],
)
def test_a_changed_project_is_refused_on_resume(change, text, copied, points, tmp_path):
    records = (tmp_path / "p" / "kbatch" / "records.jsonl").read_bytes()
    with pytest.raises(ProjectChangedError, match=text):
        search(tuner_of(tmp_path, max_trials=3, **change), points)
    assert (tmp_path / "p" / "kbatch" / "records.jsonl").read_bytes() == records


def test_changed_data_are_refused_on_resume(copied, points, tmp_path):
    (x, y), validation = points
    with pytest.raises(ProjectChangedError, match="values or order of data.training are not those"):
        search(tuner_of(tmp_path, max_trials=3), ((x + 1, y), validation))
    with pytest.raises(
        ProjectChangedError, match="values or order of validation_data are not those"
    ):
        search(tuner_of(tmp_path, max_trials=3), ((x, y), (validation[0] + 1, validation[1])))


def test_a_refused_argument_can_be_corrected_in_the_same_folder(points, tmp_path):
    with pytest.raises(SearchError, match="better than chance"):
        search(tuner_of(tmp_path, target=0.45), points)
    tuner, (x, y), validation = tuner_of(tmp_path, target=0.9), *points
    opened = tuner.hypermodel.terms.open(
        Project(tuner.project_dir), (x, y), {"validation_data": validation}
    )
    assert opened.goal.target == 0.9
    assert opened.project.facts()["target"] == 0.9


def other_build(hp):
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(hp.Int("width", 8, 24, step=8), "tanh"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def other_loss(hp):
    model = build(hp)
    model.compile("adam", "mse", metrics=["accuracy"])
    return model


@pytest.mark.parametrize(
    ("change", "arguments", "text"),
    [
        ({"model": other_build}, {}, "signature.architecture was"),
        ({"model": other_loss}, {}, "signature.loss was 'binary_crossentropy' and is now 'mse'"),
        ({}, {"class_weight": {0: 1.0, 1: 100.0}}, "class_weight was None"),
        ({"seconds": 0.5}, {}, "seconds_per_trial was 0.25"),
    ],
    ids=["build", "loss", "class weights", "seconds"],
)
def test_a_finished_search_is_refused_if_it_is_another(change, arguments, text, copied, points):
    with pytest.raises(ProjectChangedError, match=text):
        search(tuner_of(copied, max_trials=2, **change), points, **arguments)


def test_a_finished_search_of_the_same_model_is_answered(copied, points):
    records = load_records(copied / "p")
    search(tuner_of(copied, max_trials=2), points)
    assert load_records(copied / "p") == records


def test_another_device_is_refused(copied, points, monkeypatch):
    monkeypatch.setattr(device_memory, "device_words", lambda: "another GPU")
    with pytest.raises(ProjectChangedError, match="device was .* and is now 'another GPU'"):
        search(tuner_of(copied, max_trials=2), points)
