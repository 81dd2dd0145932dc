"""Trainings whose process was stopped: it is left out, and after a long stop they begin again."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from unittest import mock

import pytest
from fake_search import once, trained
from short_searches import build, search, tuner_of

import kbatch
from kbatch.callbacks.clock import TrainingClock
from kbatch.recipe import Recipe
from kbatch.records.at_most_once import Job
from kbatch.records.project import Project
from kbatch.results.loading import load_records
from kbatch.training import search as training_search

JOB = Job("search", 0, 0, Recipe())


def stopped_for(seconds, **more):
    return dataclasses.replace(trained(), seconds={"stopped": seconds}, **more)


@pytest.mark.parametrize(
    ("stops", "trainings"),
    [
        ([0.0], 1),
        ([0.05], 1),  # of a horizon of one second
        ([0.2, 0.0], 2),
        ([0.2, 0.3], 2),  # once only
    ],
)
def test_a_long_stop_begins_a_training_again_once(tmp_path, stops, trainings):
    made, project = [], Project(tmp_path)

    def train():
        made.append(stopped_for(stops[len(made)]))
        return made[-1]

    with mock.patch.object(training_search, "new_trial", fresh_trial):
        record = once(project, JOB, train)
    assert len(made) == trainings
    assert record.outcome.seconds["stopped"] == stops[-1]
    told = [remark for remark in record.outcome.remarks if "made again" in remark]
    assert (
        told
        == ["the process was stopped for 0.2 s during this training, which was made again"][
            : trainings - 1
        ]
    )
    assert len(project.store.records()) == 1
    assert project.store.unfinished_starts(JOB.key) == 1  # that of the training that ended


def fresh_trial(job, model_maker):
    return mock.Mock(failure=None, measured=lambda outcome: outcome)


@pytest.mark.parametrize("ended", ["out_of_memory", "nan"])
def test_a_failed_training_is_not_made_again(tmp_path, ended):
    made = []

    def train():
        made.append(stopped_for(0.5, ended=ended))
        return made[-1]

    once(Project(tmp_path), JOB, train)
    assert len(made) == 1


def test_a_trial_that_is_made_again_keeps_its_own_weights(tmp_path, points, monkeypatch):
    """The second model of a trial is another one, and its checkpoint is written."""
    stops, read = [], TrainingClock._newly_stopped

    def stopped(clock):
        new = read(clock)
        if clock.updates == 2 and len(stops) < 2:  # in the baseline, and in its repetition
            stops.append(clock)
            clock.stopped_seconds += 60.0
        return new

    monkeypatch.setattr(TrainingClock, "_newly_stopped", stopped)
    tuner = search(tuner_of(tmp_path, max_trials=1), points)
    baseline, trial = load_records(tmp_path / "p")
    assert "made again" in " ".join(baseline.outcome.remarks)
    assert "made again" not in " ".join(trial.outcome.remarks)
    stops.clear()
    tuner = search(tuner_of(tmp_path / "again", max_trials=1, model_seed=1), points)
    assert tuner.get_best_models(1)


PROGRAM = """
import keras, numpy as np, kbatch

class Says(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 20:
            print("trains", flush=True)

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile("sgd", "mse")
clock = kbatch.callbacks.TrainingClock()
x, y = np.ones((12_000, 8), "float32"), np.ones((12_000, 1), "float32")
model.fit(x, y, batch_size=4, verbose=0, callbacks=[clock, Says()])
print(clock.stopped_seconds, clock.updates, clock.seconds, max(clock.update_seconds[1:]))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="Windows stops no process")
def test_sigstop_takes_no_updates_from_a_training():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline().strip() == "trains"
        began = time.perf_counter()
        with contextlib.ExitStack() as going_on:
            going_on.callback(process.send_signal, signal.SIGCONT)
            process.send_signal(signal.SIGSTOP)
            time.sleep(4.0)
            least = time.perf_counter() - began
        stopped, updates, seconds, longest = map(float, process.stdout.read().split())
        whole = time.perf_counter() - began
    assert updates == 3_000
    assert 0.9 * least < stopped < whole
    assert longest < 0.5 * least
    assert seconds < whole - 0.9 * least + 20 * longest


def test_kbatch_train_tells_of_a_stop_and_trains_once(points, monkeypatch):
    read = TrainingClock._newly_stopped

    def stopped(clock):
        if clock.updates == 3:
            clock.stopped_seconds += 60.0
        return read(clock)

    monkeypatch.setattr(TrainingClock, "_newly_stopped", stopped)
    (x, y), validation = points
    _, outcome = kbatch.train(kbatch.Recipe(16), build, x, y, validation, updates=9)
    assert outcome.updates == 9
    told = "the process was stopped for 60.0 s, which the clock leaves out"
    assert told in outcome.remarks
