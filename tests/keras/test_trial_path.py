"""The way of one trial through kbatch: few frames, few types, everything prepared once."""

import contextlib
import traceback
from pathlib import Path

import keras
import keras_tuner
import pytest
from fake_search import once

import kbatch
from kbatch import Recipe, Space
from kbatch.records.at_most_once import Job
from kbatch.records.project import Project
from kbatch.training.progress import Watcher
from kbatch.training.search import Search
from kbatch.training.terms import Terms

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


class Told(Watcher):
    """Notes what it is told."""

    def __init__(self):
        self.of = []

    def ended(self, record):
        self.of.append(("ended", record.purpose, record.trial))

    def answered(self, record):
        self.of.append(("answered", record.purpose, record.trial))


def tuner_of(build, directory, max_trials=1):
    space = Space(policy="float32", optimizer="sgd", batch_size=(16, 64))
    return keras_tuner.RandomSearch(
        kbatch.HyperModel(build, space, seconds_per_trial=0.2),
        objective=kbatch.objective(),
        max_trials=max_trials,
        directory=str(directory),
        project_name="p",
    )


@contextlib.contextmanager
def openings():
    """A list that grows by one with every search that is opened."""
    opened, own = [], Terms.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Terms, "open", lambda *args, **named: opened.append(1) or own(*args, **named))
        yield opened


@pytest.fixture(scope="module")
def searched(build, points, tmp_path_factory):
    """What a search of two trials told its watcher, who called `fit`, and how often it opened."""
    (x, y), validation = points
    tuner = tuner_of(build, tmp_path_factory.mktemp("searched"), max_trials=2)
    told = tuner.hypermodel.watcher = Told()
    Notes.seen.clear()
    with openings() as opened:
        tuner.search(x, y, validation_data=validation, verbose=0, callbacks=[Notes()])
    return told.of, list(Notes.seen), len(opened)


def test_from_a_tuner_to_keras_there_are_four_frames(searched):
    baseline, *trials = searched[1]
    assert len(trials) == 2
    for each in trials:
        assert each == [
            ("tuner_border", "watched"),
            ("hypermodel", "fit"),
            ("search", "train"),
            ("trainer", "train"),
            ("run", "run"),
        ]
    last = [("search", "baseline"), ("search", "train"), ("trainer", "train"), ("run", "run")]
    assert baseline[-4:] == last


def test_a_search_is_opened_once_for_all_trials(searched):
    assert searched[2] == 1


def test_a_watcher_is_told_of_all_trials(searched):
    assert [each for each in searched[0] if each[0] == "ended"] == [
        ("ended", "baseline", -1),
        ("ended", "search", 0),
        ("ended", "search", 1),
    ]


def test_a_prepared_search_is_opened_once_for_all_trainings(build, points, tmp_path):
    (x, y), validation = points
    arguments = {"validation_data": validation, "verbose": 0}
    tuner = tuner_of(build, tmp_path)
    hypermodel = tuner.hypermodel
    with openings() as opened:
        search = hypermodel.prepared.open(Project(tuner.project_dir), x, y, **arguments)
        told = hypermodel.watcher = Told()
        tuner.search(x, y, **arguments)
        assert [each[1] for each in told.of if each[0] == "ended"] == ["baseline", "search"]
        told.of.clear()
        kbatch.confirm(tuner, x, y, top=1, seeds=1, **arguments)
        assert [each[:2] for each in told.of] == [
            ("answered", "baseline"),
            ("ended", "confirmation"),
            ("ended", "confirmation"),
        ]
        assert len(opened) == 1
        assert len(search.project.store.records()) == 4
        told.of.clear()
        kbatch.confirm(tuner, x.copy(), y, top=1, seeds=1, **arguments)
        assert len(opened) == 2  # other objects are looked at
    # and the watcher is told of a confirmation that was opened for itself too
    assert [each[:2] for each in told.of] == [
        ("answered", "baseline"),
        ("answered", "confirmation"),
        ("answered", "confirmation"),
    ]


def test_a_search_can_be_opened_before_a_tuner_searches(build, points, tmp_path):
    (x, y), validation = points
    tuner = tuner_of(build, tmp_path)
    search = tuner.hypermodel.terms.open(
        Project(tuner.project_dir), (x, y), {"validation_data": validation}
    )
    assert isinstance(search, Search)
    assert search.goal.seconds == 0.2
    assert search.data.training.examples == len(x)
    assert search.project.store.records() == []


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
