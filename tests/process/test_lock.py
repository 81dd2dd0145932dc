"""One process at a time trains in a project, and its lock dies with it."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest
from fake_search import once, trained

from kbatch import Recipe
from kbatch.errors import RecordError
from kbatch.records import files
from kbatch.records.at_most_once import Job
from kbatch.records.files import Lock
from kbatch.records.project import Project

JOB = Job("search", 0, 0, Recipe(), {}, 1e-3)
HOLD = """
import sys, time
from pathlib import Path
from kbatch.records.files import Lock
held = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def another():
    """A function that starts another process which holds a folder."""
    processes = []

    def begin(folder):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def test_a_folder_of_another_process_is_refused_until_its_death(tmp_path, another):
    process = another(tmp_path)
    with pytest.raises(
        RecordError,
        match=f"by one process at a time. Received: process {process.pid} on .* since 20",
    ):
        Lock(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with Lock(tmp_path) as held:
        assert held.fresh


def test_a_process_does_not_lock_itself_out(tmp_path):
    first, second = Lock(tmp_path), Lock(tmp_path)
    assert (first.fresh, second.fresh) == (True, False)
    first.release()
    first.release()
    assert not Lock(tmp_path).fresh  # the second one still holds it
    second.release()
    assert Lock(tmp_path).fresh


def test_a_lock_that_nobody_refers_to_any_more_is_gone(tmp_path, another):
    Lock(tmp_path)
    process = another(tmp_path)
    with pytest.raises(RecordError, match=f"process {process.pid} "):
        Lock(tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_child_does_not_keep_the_lock(tmp_path, another):
    held = Lock(tmp_path)
    child = os.fork()
    if not child:
        time.sleep(600)
        os._exit(0)
    try:
        held.release()
        process = another(tmp_path)
        with pytest.raises(RecordError, match=f"process {process.pid} "):
            Lock(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_file_system_without_locks_only_warns(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files, "_system_lock", refuse)
    with pytest.warns(UserWarning, match="without locks: let one process at a time"):
        assert Lock(tmp_path).fresh


def test_a_project_that_another_process_trains_in_is_left_alone(tmp_path, another):
    project = Project(tmp_path)
    process = another(project.folder)
    with pytest.raises(RecordError, match=f"process {process.pid}"):
        once(project, JOB, lambda: pytest.fail("must not be trained"))
    assert not project.store.path.exists()


def test_a_trial_that_another_process_finished_is_not_repeated(tmp_path):
    waiting = Project(tmp_path)
    once(Project(tmp_path), JOB, trained)
    assert once(waiting, JOB, lambda: pytest.fail("must not be trained twice")).score == 0.02


def test_a_training_of_another_process_is_no_crash(tmp_path, another):
    project = Project(tmp_path)
    for _ in range(2):
        project.store.start(JOB.key)
    another(project.folder)
    with pytest.raises(RecordError, match="one process at a time"):
        once(Project(tmp_path), JOB, trained)
    assert Project(tmp_path).store.records() == []


def test_a_project_that_another_process_searches_is_refused(tmp_path, points, build, another):
    import keras
    import keras_tuner

    import kbatch

    (x, y), validation = points
    process = another(tmp_path / "p" / "kbatch")
    hypermodel = kbatch.HyperModel(build, kbatch.Space(policy="float32"), seconds_per_trial=0.1)
    tuner = keras_tuner.RandomSearch(
        hypermodel, objective=kbatch.objective(), max_trials=2, directory=tmp_path, project_name="p"
    )
    with pytest.raises(RecordError, match=f"process {process.pid}"):
        tuner.search(x, y, validation_data=validation, verbose=0)
    process.kill()
    process.wait()
    refused = []

    class Asking(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            folder = tmp_path / "p" / "kbatch"
            refused.append(
                subprocess.run(
                    [sys.executable, "-c", HOLD, folder],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=60,
                ).stderr
            )

    tuner.search(x, y, validation_data=validation, verbose=0, callbacks=[Asking()])
    assert refused
    assert all(f"process {os.getpid()} on" in said for said in refused)
    assert Lock(tmp_path / "p" / "kbatch").fresh
    assert {record.outcome.ended for record in Project(tmp_path / "p").store.records()} == {
        "horizon"
    }
