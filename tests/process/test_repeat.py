"""Repeats in searches that are interrupted, fail, train two at once or are taken up by another."""

import dataclasses
import math
import sys

import keras
import pytest
import tensorflow as tf
from short_searches import SECONDS, SPACE, build, search

import kbatch
from kbatch.results.loading import load_records
from kbatch.results.ranking import leaders, mean_score
from kbatch.search import oracle, tuner_border

SEED = 5
# The baseline is the first training of a search, and after two trials comes the repeat.
REPEAT_TRAINING = 3


@pytest.fixture(autouse=True)
def after_two(monkeypatch):
    monkeypatch.setattr(oracle, "REPEATED_FROM", 2)
    monkeypatch.setattr(tuner_border, "widest_difference", lambda *_: math.inf)  # none is stopped


def tuner_in(folder, **arguments):
    given = {"seconds_per_trial": SECONDS, "project_name": "p", "seed": SEED, **arguments}
    return kbatch.Tuner(build, SPACE, directory=folder, **given)


def trials_of(folder):
    return [record for record in load_records(folder / "p") if record.purpose == "search"]


def repeats_in(folder):
    return [record for record in trials_of(folder) if record.repeats is not None]


class Ending(keras.callbacks.Callback):
    """Raises an error in one of the trainings that a process makes."""

    begun = 0

    def __init__(self, training, error):
        super().__init__()
        self.training, self.error = training, error

    def on_train_begin(self, logs=None):
        type(self).begun += 1

    def on_train_batch_end(self, batch, logs=None):
        if self.begun - 1 == self.training and batch >= 2:
            raise self.error


@pytest.fixture
def ending(monkeypatch):
    monkeypatch.setattr(Ending, "begun", 0)
    return Ending


def test_an_interrupted_repeat_is_made_anew(points, tmp_path, ending):
    callbacks = [ending(REPEAT_TRAINING, KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt) as stopped:
        search(tuner_in(tmp_path), points, max_trials=4, callbacks=callbacks)
    if sys.version_info >= (3, 11):  # Python's traceback ends with it
        assert f"kept in {tmp_path}" in stopped.value.__notes__[0]
    assert len(trials_of(tmp_path)) == 2
    search(tuner_in(tmp_path), points, max_trials=4, callbacks=callbacks)
    assert [record.trial for record in trials_of(tmp_path)] == [0, 1, 2, 3]
    (again,) = (record for record in repeats_in(tmp_path) if record.trial == 2)
    assert again.seed == 100_000 + SEED
    assert again.outcome.ended == "horizon"
    (first,) = (record for record in trials_of(tmp_path) if record.trial == again.repeats)
    assert (first.recipe, first.seed) == (again.recipe, SEED)


def test_a_repeat_out_of_memory_counts_as_zero(points, tmp_path, ending):
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
    search(tuner_in(tmp_path), points, max_trials=4, callbacks=[ending(REPEAT_TRAINING, error)])
    failed = repeats_in(tmp_path)[0]
    assert (failed.trial, failed.outcome.ended, failed.score) == (2, "out_of_memory", 0.0)
    records = load_records(tmp_path / "p")
    (first,) = (record for record in trials_of(tmp_path) if record.trial == failed.repeats)
    assert mean_score(records, first) == pytest.approx(first.score / 2)
    assert [record.repeats for record in repeats_in(tmp_path)].count(failed.repeats) == 1
    assert leaders(records, 9)[0].recipe == kbatch.best_recipe(tuner_in(tmp_path))


@pytest.mark.slow
def test_two_workers_repeat_a_leader_once(points, tmp_path):
    executor = kbatch.LocalExecutor(workers=2)
    search(tuner_in(tmp_path, executor=executor), points, max_trials=8)
    assert sorted(record.trial for record in trials_of(tmp_path)) == list(range(8))
    repeated = [record.repeats for record in repeats_in(tmp_path)]
    assert repeated
    assert len(repeated) == len(set(repeated))
    assert {record.seed for record in repeats_in(tmp_path)} == {100_000 + SEED}


def test_a_warm_start_takes_up_repeats(points, tmp_path):
    search(tuner_in(tmp_path), points, max_trials=4)
    earlier = trials_of(tmp_path)
    tuner = tuner_in(tmp_path, project_name="q", warm_start=tmp_path / "p")
    search(tuner, points, max_trials=1)
    seen = tuner.oracle._earlier
    assert len(seen) == len(earlier)
    assert not any(oracle.REPEAT in each.values for each in seen)
    values = [each.values for each in seen]
    assert any(values.count(each) > 1 for each in values)  # the repeat is one more training
    assert dataclasses.asdict(seen[0])["score"] == pytest.approx(earlier[0].score)
