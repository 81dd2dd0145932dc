"""Executors: trainings of one search at once, in processes here and of a Ray cluster."""

import os
import signal
import threading
import time
import warnings
from types import SimpleNamespace

import keras
import keras_tuner
import pytest
import ray
from short_searches import build
from test_search_tuner import search, trials_of, tuner_in

import kbatch
from kbatch.errors import SearchError
from kbatch.results.loading import load_records
from kbatch.runtime import device
from kbatch.runtime.worker import Death, RayWorker
from kbatch.training.workers import LocalExecutor, RayExecutor, executor_of

WAIT_SECONDS = 120


@pytest.fixture(scope="module")
def cluster():
    ray.init("local", num_cpus=2, num_gpus=0, log_to_driver=False, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture(params=["local", "ray"])
def executor(request):
    if request.param == "local":
        return LocalExecutor(workers=2)
    request.getfixturevalue("cluster")
    return RayExecutor(workers=2)


class Together(keras.callbacks.Callback):
    """Holds a trial of the search until another one has begun too, and notes its process."""

    def __init__(self, folder):
        super().__init__()
        self.folder = str(folder)

    def on_train_begin(self, logs=None):
        before = len(os.listdir(self.folder))
        with open(f"{self.folder}/{before}-{os.getpid()}", "w"):
            pass
        if before == 0:  # the baseline trains alone
            return
        ends_at = time.monotonic() + WAIT_SECONDS
        while len(os.listdir(self.folder)) < 3:
            assert time.monotonic() < ends_at, "no other trial began meanwhile"
            time.sleep(0.05)


@pytest.mark.parametrize(
    "executor", ["local", pytest.param("ray", marks=pytest.mark.slow)], indirect=True
)
def test_two_trials_train_at_once(executor, points, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noted = tmp_path / "noted"
    noted.mkdir()
    tuner = tuner_in(".", executor=executor)  # which is another folder for a worker of Ray
    search(tuner, points, max_trials=5, callbacks=[Together(noted)])
    records = load_records(tmp_path / "p")
    assert sorted(record.trial for record in records) == [-1, 0, 1, 2, 3, 4]
    assert {record.outcome.ended for record in records} <= {"horizon", "stopped"}
    pids = {name.split("-")[1] for name in os.listdir(noted)}
    assert len(pids) == 2
    assert str(os.getpid()) not in pids
    statuses = {trial.status for trial in tuner.oracle.trials.values()}
    assert statuses <= {"COMPLETED", "STOPPED"}
    best = int(tuner.oracle.get_best_trials()[0].trial_id)
    value = next(each.outcome.value for each in trials_of(tmp_path / "p") if each.trial == best)
    x, y = points[1]
    model = tuner.get_best_models()[0]
    found = model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"]
    assert found == pytest.approx(value)
    assert not list((tmp_path / "p" / "kbatch").glob("isolated*"))
    again = tuner_in(tmp_path, executor=executor)
    search(again, points, max_trials=5, callbacks=[Together(noted)])
    assert len(load_records(tmp_path / "p")) == 6


@pytest.mark.slow
def test_two_recipes_are_confirmed_at_once(executor, points, tmp_path):
    tuner = tuner_in(tmp_path, executor=executor)
    noted = tmp_path / "noted"
    noted.mkdir()
    search(tuner, points, max_trials=4, callbacks=[Together(noted)])
    for file in noted.iterdir():
        file.unlink()
    (x, y), validation = points
    arguments = {"validation_data": validation, "verbose": 0, "top": 2}
    runs = kbatch.confirm(tuner, x, y, seeds=[1, 2], **arguments)
    assert len({name.split("-")[1] for name in os.listdir(noted)}) == 2
    assert runs.seed.tolist() == [1, 1, 1, 2, 2]
    assert runs.trial.tolist()[0] == runs.trial.tolist()[3] == -1
    assert set(runs.ended) == {"horizon"}
    again = kbatch.confirm(tuner, x, y, seeds=[1, 2], **arguments)
    assert again.score.tolist() == runs.score.tolist()


class Killed(keras.callbacks.Callback):
    """Kills the process of one trial, twice."""

    def __init__(self, path):
        super().__init__()
        self.path = str(path)

    def on_train_batch_end(self, batch, logs=None):
        if not os.path.exists(self.path):
            return open(self.path, "w").close()  # in the copy of the baseline
        if self.model.optimizer.name == "sgd" and os.path.getsize(self.path) < 2:
            with open(self.path, "a") as lines:
                lines.write("x")
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_trial_that_kills_its_process_ends_alone(executor, points, tmp_path):
    tuner = tuner_in(tmp_path, executor=executor)
    search(tuner, points, max_trials=4, callbacks=[Killed(tmp_path / "deaths")])
    records = load_records(tmp_path / "p")
    assert len(records) == 5
    died = [r for r in records if r.outcome.ended == "crashed" or "during this" in str(r.outcome)]
    assert 1 <= len(died) <= 2
    assert sum(record.outcome.ended in ("horizon", "stopped") for record in records) >= 4


def failing(hp):
    if hp.Int("width", 8, 24, step=8) > 8:
        raise ZeroDivisionError("a bug of the user's")
    return build(hp)


@pytest.mark.slow
def test_an_error_of_one_thread_ends_the_search(executor, points, tmp_path):
    tuner = tuner_in(tmp_path, executor=executor, build=failing)
    with pytest.raises(keras_tuner.errors.FatalRuntimeError, match="a bug of the user's"):
        search(tuner, points, max_trials=12)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kbatch-")]


@pytest.mark.slow
def test_ctrl_c_ends_all_and_the_search_goes_on(executor, points, tmp_path):
    tuner = tuner_in(tmp_path, executor=executor, seconds_per_trial=3)
    timer = threading.Timer(0, _interrupt_once_two_train, [tmp_path / "p"])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        search(tuner, points, max_trials=3)
    timer.join()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kbatch-")]
    kept = len(load_records(tmp_path / "p"))
    search(tuner_in(tmp_path, executor=executor, seconds_per_trial=3), points, max_trials=3)
    records = load_records(tmp_path / "p")
    assert kept < len(records) == 4
    assert "crashed" not in [record.outcome.ended for record in records]


@pytest.mark.slow
def test_ctrl_c_in_a_proposal_leaves_no_lock(points, tmp_path):
    """KerasTuner's own lock of an oracle stays locked; see `keras_tuner_private.unlock`."""
    tuner = tuner_in(tmp_path, executor=LocalExecutor(workers=2))
    proposed, begun = tuner.oracle.populate_space, []

    def interrupted(trial_id):
        begun.append(trial_id)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return proposed(trial_id)

    tuner.oracle.populate_space = interrupted
    with pytest.raises(KeyboardInterrupt):
        search(tuner, points, max_trials=5)
    search(tuner, points, max_trials=5)
    assert len(load_records(tmp_path / "p")) == 6


@pytest.mark.slow
def test_files_of_callbacks_are_one_for_each_trial(points, tmp_path):
    tuner = tuner_in(tmp_path, executor=LocalExecutor(workers=2))
    path = tmp_path / "best.weights.h5"
    writing = keras.callbacks.ModelCheckpoint(path, save_freq=5, save_weights_only=True)
    search(tuner, points, max_trials=4, callbacks=[writing])
    assert len(load_records(tmp_path / "p")) == 5
    assert len(list(tmp_path.glob("trial-*.best.weights.h5"))) == 4


def _wait_for_two(project):
    ends_at = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < ends_at and len(list(project.glob("trial_*"))) < 2:
        time.sleep(0.05)
    time.sleep(1)


def _interrupt_once_two_train(project):
    _wait_for_two(project)
    os.kill(os.getpid(), signal.SIGINT)


def test_a_worker_that_hangs_is_ended(executor):
    worker = executor.worker(0)
    ends_at = time.monotonic() + 5
    assert worker.watched(pow, 2, 10, goes_on=lambda: True) == 1024
    ended = worker.watched(time.sleep, 600, goes_on=lambda: time.monotonic() < ends_at)
    assert isinstance(ended, Death)
    assert ended.exit_code is None
    assert not worker.alive
    assert worker.watched(pow, 2, 3, goes_on=lambda: True) == 8
    worker.close()


def test_an_exception_of_a_worker_is_raised(executor):
    worker = executor.worker(0)
    with pytest.raises(ZeroDivisionError):
        worker.watched(divmod, 1, 0, goes_on=lambda: True)
    assert worker.alive
    worker.close()


def test_nonsense_is_refused(cluster):
    for executor in ("gpu", 2, LocalExecutor):
        with pytest.raises(SearchError, match="executor"):
            executor_of(executor)
    for workers in (0, 1.5, "two"):
        with pytest.raises(SearchError, match="workers"):
            LocalExecutor(workers)
    with pytest.raises(SearchError, match="room for all workers"):
        RayExecutor(workers=3)
    with pytest.raises(SearchError, match="room for all workers"):
        RayExecutor(workers=1, gpus_per_worker=1)


def test_more_workers_than_cores_are_warned_of(monkeypatch):
    monkeypatch.setattr(device, "cores", lambda: 2)
    with pytest.warns(UserWarning, match="3 workers share 2 of the CPU's cores"):
        LocalExecutor(workers=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LocalExecutor(workers=2)


def test_names_choose_executors(cluster):
    assert isinstance(executor_of("local"), LocalExecutor)
    assert isinstance(executor_of("ray"), RayExecutor)
    assert isinstance(executor_of("ray").worker(0), RayWorker)


GPUS = [SimpleNamespace(name=f"/physical_device:GPU:{number}") for number in (0, 1)]


def test_workers_share_the_cores_or_have_a_gpu_each(monkeypatch):
    executor = LocalExecutor(workers=2)
    own = executor.worker(1).environment
    assert int(own["OMP_NUM_THREADS"]) == max(len(os.sched_getaffinity(0)) // 2, 1)
    assert LocalExecutor().worker(0).environment == {}
    monkeypatch.setattr("kbatch.runtime.device.gpus_of_trainings", lambda: GPUS)
    assert [LocalExecutor().worker(n).environment for n in (0, 1)] == [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
    ]
    assert LocalExecutor(workers=1).worker(0).environment == {"CUDA_VISIBLE_DEVICES": "0"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert LocalExecutor().worker(1).environment == {"CUDA_VISIBLE_DEVICES": "5"}
    with pytest.raises(SearchError, match="GPU of its own"):
        LocalExecutor(workers=3)
