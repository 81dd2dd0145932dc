"""Isolated trials: the same trainings, each in a worker process that may die."""

import dataclasses
import gc
import os
import signal

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf
from short_searches import SECONDS, SPACE, build, search

import kbatch
from kbatch.data.validation import prepare
from kbatch.errors import DataError, SearchError
from kbatch.results.loading import load_records
from kbatch.training import workers
from kbatch.training.progress import Watcher
from kbatch.training.workers import LocalExecutor

SMALL = dataclasses.replace(SPACE, batch_size=(32,), optimizer=("adam",))
KILLED = "process died with exit code -9"


def tuner_in(folder, model=build, space=SMALL, max_trials=1, **arguments):
    seconds = arguments.pop("seconds_per_trial", SECONDS)
    own = {"seconds_per_trial": seconds, "isolated": True}
    return keras_tuner.RandomSearch(
        kbatch.HyperModel(model, space, **own),
        objective=kbatch.objective(),
        max_trials=max_trials,
        directory=folder,
        project_name="p",
        **arguments,
    )


def ended(folder):
    return [record.outcome.ended for record in load_records(folder / "p")]


@pytest.fixture(scope="module")
def searched(points, tmp_path_factory):
    folder = tmp_path_factory.mktemp("isolated")
    tuner = tuner_in(folder, max_trials=2, space=dataclasses.replace(SMALL, batch_size=(16, 32)))
    return search(tuner, points, callbacks=[Noted(folder / "pids")]), folder


class Noted(keras.callbacks.Callback):
    """Writes the number of the process that trains."""

    def __init__(self, path):
        super().__init__()
        self.path = str(path)

    def on_train_begin(self, logs=None):
        with open(self.path, "a") as lines:
            lines.write(f"{os.getpid()}\n")


def test_all_trainings_are_made_in_one_other_process(searched):
    tuner, folder = searched
    assert ended(folder) == ["horizon"] * 3
    pids = (folder / "pids").read_text().split()
    assert len(pids) == 3
    assert len(set(pids)) == 1
    assert int(pids[0]) != os.getpid()
    assert load_records(folder / "p")[0].device


def test_the_kept_weights_come_back(searched, points):
    tuner, folder = searched
    model = tuner.get_best_models()[0]
    x, y = points[1]
    best = max(load_records(folder / "p")[1:], key=lambda record: record.score)
    found = model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"]
    assert found == pytest.approx(best.outcome.value)


@pytest.mark.slow
def test_a_confirmation_is_isolated_too(searched, points):
    tuner, folder = searched
    (x, y), validation = points
    begun = len((folder / "pids").read_text().split())
    noted = [Noted(folder / "pids")]
    rows = kbatch.confirm(
        tuner, x, y, validation, top=1, seeds=1, test_data=validation, callbacks=noted
    )
    assert rows.test_accuracy.tolist() == pytest.approx(rows.val_accuracy.tolist())
    pids = (folder / "pids").read_text().split()[begun:]
    assert len(pids) == 2
    assert str(os.getpid()) not in pids


class Killed(keras.callbacks.Callback):
    """Kills the process that trains, so many times, and never in a baseline."""

    def __init__(self, folder, times):
        super().__init__()
        self.path, self.times = str(folder / "deaths"), times

    def on_train_batch_end(self, batch, logs=None):
        deaths = os.path.getsize(self.path) if os.path.exists(self.path) else -1
        if deaths < 0:
            open(self.path, "w").close()
            self.times = 0  # in the copy of the baseline
        elif deaths < self.times:
            with open(self.path, "a") as lines:
                lines.write("x")
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_training_that_is_killed_is_tried_twice(points, tmp_path, times):
    tuner = tuner_in(tmp_path)
    search(tuner, points, callbacks=[Killed(tmp_path, times)])
    assert ended(tmp_path) == ["horizon", "horizon" if times == 1 else "crashed"]
    record = load_records(tmp_path / "p")[-1]
    assert (KILLED in record.outcome.message) == (times == 2)
    assert any(KILLED in remark for remark in record.outcome.remarks) == (times == 1)
    assert (tmp_path / "deaths").read_text() == "x" * times


@pytest.mark.slow
def test_an_error_of_the_users_model_is_told(points, tmp_path):
    def wrong(hp):
        if hp.Choice("kind", ["good", "bad"]) == "bad":
            raise ZeroDivisionError("wrong kind")
        return build(hp)

    with pytest.raises(Exception, match="ZeroDivisionError: wrong kind"):
        search(tuner_in(tmp_path, wrong, max_trials=2, seed=1), points)
    assert ended(tmp_path)[0] == "horizon"


@pytest.mark.slow
def test_what_build_declares_in_a_worker_is_searched(points, tmp_path):
    def late(hp):
        if os.getpid() != parent:
            hp.Boolean("late")
        return build(hp)

    parent = os.getpid()
    tuner = search(tuner_in(tmp_path, late, max_trials=2), points)
    assert "late" in tuner.oracle.hyperparameters.values
    assert "late" in load_records(tmp_path / "p")[-1].values


def random_dataset(x, y):
    return (
        tf.data.Dataset.from_tensor_slices((x, y))
        .shuffle(len(x))
        .map(lambda a, b: (a + tf.random.normal((12,), 0.0, 0.01), b))
        .batch(20)
    )


def test_a_dataset_travels_as_its_steps(points, tmp_path):
    (x, y), (x_val, y_val) = points
    held_out = tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(50)
    tuner = tuner_in(tmp_path)
    tuner.search(random_dataset(x, y), validation_data=held_out, verbose=0)
    assert ended(tmp_path) == ["horizon"] * 2


def of_python(x, y):
    def examples():
        yield from zip(x, y, strict=True)

    spec = (tf.TensorSpec((12,), x.dtype), tf.TensorSpec(y.shape[1:], y.dtype))
    return tf.data.Dataset.from_generator(examples, output_signature=spec)


def test_a_dataset_of_python_is_refused(points, tmp_path):
    (x, y), validation = points
    with pytest.raises(DataError, match=r"able to travel.*calls Python"):
        tuner_in(tmp_path).search(of_python(x, y), validation_data=validation, verbose=0)
    assert ended(tmp_path) == []


def test_a_callback_that_cannot_travel_is_refused_by_name(points, tmp_path):
    class Holding(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.lines = (line for line in "ab")

        def __deepcopy__(self, memo):
            return self

    with pytest.raises(SearchError, match=r"must arrive in another process.*Holding"):
        search(tuner_in(tmp_path), points, callbacks=[Holding()])


class TwoPart(Exception):
    """An error that cannot be unpickled: its text comes of two parts."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


@pytest.mark.slow
def test_an_error_that_cannot_travel_is_told_too(points, tmp_path):
    parent = os.getpid()

    def wrong(hp):
        if os.getpid() != parent:
            raise TwoPart("no", "room")
        return build(hp)

    with pytest.raises(Exception, match="TwoPart: no room"):
        search(tuner_in(tmp_path, wrong), points)
    assert ended(tmp_path) == []


def raw(hp=None):
    return keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, "sigmoid")])


@keras.saving.register_keras_serializable("isolated")
class Forgetful(keras.losses.Loss):
    """A loss whose configuration lacks its number."""

    def __init__(self, gamma=2.0, **arguments):
        super().__init__(**arguments)
        self.gamma = gamma

    def call(self, y_true, y_pred):
        return keras.losses.binary_crossentropy(y_true, y_pred) ** self.gamma


class Unregistered(Forgetful):
    """A loss that Keras does not find in another process."""

    def get_config(self):
        return {**super().get_config(), "gamma": self.gamma}


LOSSES = {
    "forgetful": (Forgetful(5.0), r"must arrive in another process.*Forgetful whose gamma"),
    "unregistered": (Unregistered(5.0), r"another process.*Unregistered"),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_that_would_not_arrive_as_it_is_is_refused(points, tmp_path, kind):
    loss, words = LOSSES[kind]
    hypermodel = kbatch.HyperModel(
        raw, SMALL, seconds_per_trial=SECONDS, isolated=True, loss=loss, metrics=["accuracy"]
    )
    tuner = keras_tuner.RandomSearch(
        hypermodel, kbatch.objective(), 1, directory=tmp_path, project_name="p"
    )
    with pytest.raises(SearchError, match=words):
        search(tuner, points)


@pytest.mark.slow
def test_epochs_are_timed_in_a_worker(points, tmp_path):
    tuner = tuner_in(tmp_path, seconds_per_trial=None)
    search(tuner, points, epochs=40)
    assert ended(tmp_path) == ["horizon"] * 2


def test_a_trainer_that_nobody_closes_leaves_nothing_behind(tmp_path):
    trainer = workers.IsolatedTrainer(None, None, (), None, None, tmp_path, LocalExecutor())
    folder, worker = trainer._folder, trainer._seats[0].worker
    folder.mkdir()
    assert worker.call(os.getpid, timeout_seconds=60) != os.getpid()
    del trainer
    gc.collect()
    assert not worker.alive
    assert not folder.exists()


def test_a_trainer_leaves_the_files_of_others_alone(points, tmp_path):
    (x, y), validation = points
    data = prepare(x, y, validation_data=validation)
    first, second = (
        workers.IsolatedTrainer(None, data, (), None, None, tmp_path, LocalExecutor())
        for _ in range(2)
    )
    killed = tmp_path / "isolated-1-0"  # of another process, which held the project before
    killed.mkdir()
    for trainer in (first, second):
        trainer._prepare()
    assert not killed.exists()
    kept = second._folder
    del first, trainer
    (kept / "data").touch()  # these examples are too small for files of their own
    gc.collect()
    assert list(kept.iterdir()) == [kept / "data"]
    second.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_worker_is_renewed_before_it_grows(points, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "TRAININGS_OF_A_WORKER", 1)
    search(tuner_in(tmp_path), points, callbacks=[Noted(tmp_path / "pids")])
    assert len(set((tmp_path / "pids").read_text().split())) == 2


@pytest.mark.slow
def test_a_training_that_says_nothing_is_ended(points, tmp_path, monkeypatch):
    class Hanging(Noted):
        def on_train_batch_end(self, batch, logs=None):
            while os.path.exists(f"{self.path}.hang"):
                signal.pause()

    search(tuner_in(tmp_path), points, callbacks=[Hanging(tmp_path / "pids")])
    (tmp_path / "pids.hang").touch()
    monkeypatch.setattr(workers, "SILENT_SECONDS", 3.0)
    tuner = tuner_in(tmp_path, max_trials=2)
    search(tuner, points, callbacks=[Hanging(tmp_path / "pids")])
    assert ended(tmp_path)[-1] == "crashed"
    assert "hung" in load_records(tmp_path / "p")[-1].outcome.message


@pytest.mark.parametrize("kind", ["strategy", "size"])
def test_what_isolation_cannot_do_is_refused(points, tmp_path, kind):
    arguments = {"max_model_size": 10**6}
    if kind == "strategy":
        arguments = {"distribution_strategy": tf.distribute.MirroredStrategy(["CPU:0"])}
    with pytest.raises(SearchError, match="isolated"):
        search(tuner_in(tmp_path, **arguments), points)


@pytest.mark.slow
def test_the_users_augmentation_travels(points, tmp_path):
    kbatch.register_augmentation("isolated_noise", lambda: [keras.layers.GaussianNoise(0.1)])
    space = dataclasses.replace(SMALL, augmentation=("isolated_noise",))
    search(tuner_in(tmp_path, space=space), points)
    assert ended(tmp_path) == ["horizon"] * 2


@pytest.mark.slow
def test_kbatchs_tuner_stops_isolated_trials_at_rungs(points, tmp_path):
    space = dataclasses.replace(SPACE, batch_size=(16, 32, 64))
    tuner = kbatch.Tuner(
        build, space, seconds_per_trial=1.0, isolated=True, directory=tmp_path, project_name="p"
    )
    (x, y), validation = points
    tuner.search(x, y, validation_data=validation, max_trials=5, verbose=0)
    assert len(ended(tmp_path)) == 6
    assert "stopped" in ended(tmp_path)


@pytest.mark.slow
def test_large_arrays_are_mapped_and_their_files_removed(points, tmp_path, monkeypatch):
    (x, y), validation = points
    folder, seen = tmp_path / "p" / "kbatch", []
    monkeypatch.setattr("kbatch.data.travel.MAPPED_BYTES", 1)
    tuner = tuner_in(tmp_path)
    tuner.hypermodel.watcher = Watcher()
    tuner.hypermodel.watcher.ended = lambda record: seen.append(sorted(folder.glob("isolated-*/*")))
    search(tuner, ((np.repeat(x, 3, 0), np.repeat(y, 3, 0)), validation))
    assert ended(tmp_path) == ["horizon"] * 2
    assert [[path.name for path in files] for files in seen] == [
        ["0.npy", "1.npy", "progress-0"]
    ] * 2
    assert not list(folder.glob("isolated-*"))
