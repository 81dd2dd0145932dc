"""The way of one trial through kbatch: few frames, few types, everything prepared once."""

import traceback
from pathlib import Path

import keras
import keras_tuner
import pytest
from fake_search import once

import kbatch
from kbatch import Recipe, Space
from kbatch.training.job import Job
from kbatch.training.progress import Watcher
from kbatch.training.project import Project
from kbatch.training.search import Search
from kbatch.training.search_terms import Terms

ROOM = Path(kbatch.__file__).parent


def frames():
    """Kbatch's own functions that are being called, the outermost first."""
    return [
        (Path(each.filename).stem, each.name)
        for each in traceback.extract_stack()
        if ROOM in Path(each.filename).parents
    ]


class Notes(keras.callbacks.Callback):
    """Notes who called Keras' `fit`."""

    seen: list = []

    def on_train_begin(self, logs=None):
        Notes.seen.append([frame for frame in frames() if frame[1] != "on_train_begin"])

    def __deepcopy__(self, memo):
        return self


@pytest.fixture
def tuner(build, tmp_path):
    space = Space(policy="float32", optimizer="sgd", batch_size=(16, 64))
    hypermodel = kbatch.HyperModel(build, space, seconds_per_trial=0.2)
    return keras_tuner.RandomSearch(
        hypermodel,
        objective=kbatch.objective(),
        max_trials=2,
        directory=str(tmp_path),
        project_name="p",
    )


def test_from_a_tuner_to_keras_there_are_three_frames(tuner, points):
    (x, y), validation = points
    Notes.seen.clear()
    tuner.search(x, y, validation_data=validation, verbose=0, callbacks=[Notes()])
    baseline, *trials = Notes.seen
    assert len(trials) == 2
    for each in trials:
        assert each == [
            ("tuner_border", "watched"),
            ("hypermodel", "fit"),
            ("search", "train"),
            ("run", "run"),
        ]
    assert baseline[-3:] == [("search", "baseline"), ("search", "train"), ("run", "run")]


def test_a_search_is_opened_once_for_all_trials(tuner, points, monkeypatch):
    (x, y), validation = points
    opened = []
    monkeypatch.setattr(
        Terms,
        "open",
        lambda *args, own=Terms.open, **named: opened.append(1) or own(*args, **named),
    )
    tuner.search(x, y, validation_data=validation, verbose=0)
    assert len(opened) == 1


def test_a_prepared_search_is_opened_once_for_all_trainings(tuner, points, monkeypatch):
    (x, y), validation = points
    opened = []
    monkeypatch.setattr(
        Terms,
        "open",
        lambda *args, own=Terms.open, **named: opened.append(1) or own(*args, **named),
    )
    arguments = {"validation_data": validation, "verbose": 0}
    hypermodel = tuner.hypermodel
    search = hypermodel.prepared.open(Project(tuner.project_dir), x, y, **arguments)
    told = hypermodel.watcher = Told()
    tuner.search(x, y, **arguments)
    kbatch.confirm(tuner, x, y, top=1, seeds=1, **arguments)
    assert len(opened) == 1
    assert len(search.project.store.records()) == 5
    assert [each[1] for each in told.of if each[0] == "ended"] == [
        "baseline",
        "search",
        "search",
        "confirmation",
        "confirmation",
    ]
    kbatch.confirm(tuner, x.copy(), y, top=1, seeds=1, **arguments)
    assert len(opened) == 2  # other objects are looked at


def test_a_search_can_be_opened_before_a_tuner_searches(tuner, points):
    (x, y), validation = points
    search = tuner.hypermodel.terms.open(
        Project(tuner.project_dir), (x, y), {"validation_data": validation}
    )
    assert isinstance(search, Search)
    assert search.goal.seconds == 0.2
    assert search.data.training.examples == len(x)
    assert search.project.store.records() == []


class Told(Watcher):
    """Notes what it is told."""

    def __init__(self):
        self.of = []

    def ended(self, record):
        self.of.append(("ended", record.purpose, record.trial))

    def answered(self, record):
        self.of.append(("answered", record.purpose, record.trial))


def test_a_watcher_is_told_of_trials_and_confirmations(tuner, points):
    (x, y), validation = points
    told = tuner.hypermodel.watcher = Told()
    tuner.search(x, y, validation_data=validation, verbose=0)
    assert [each for each in told.of if each[0] == "ended"] == [
        ("ended", "baseline", -1),
        ("ended", "search", 0),
        ("ended", "search", 1),
    ]
    told.of.clear()
    kbatch.confirm(tuner, x, y, validation, top=1, seeds=1, verbose=0)
    assert [each[:2] for each in told.of] == [
        ("answered", "baseline"),
        ("ended", "confirmation"),
        ("ended", "confirmation"),
    ]


def test_the_model_of_a_trial_that_is_answered_is_given_back(tmp_path):
    forgotten = []
    job = Job("search", 0, 0, Recipe(), {}, 1e-3)
    once(Project(tmp_path), job)
    once(
        Project(tmp_path),
        job,
        train=lambda: pytest.fail("it is known"),
        forget=lambda: forgotten.append(1),
    )
    assert forgotten == [1]
