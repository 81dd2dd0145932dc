"""Tuners, arguments and data that kbatch refuses by name before any trial."""

import traceback
from pathlib import Path

import keras
import keras_tuner
import pytest
import tensorflow as tf
from short_searches import SECONDS, SPACE, build, search, tuner_of

import kbatch
from kbatch import HyperModel, Space
from kbatch.errors import DataError, KbatchError, SearchError


@pytest.mark.parametrize(
    ("seconds", "arguments"),
    [(None, {}), (1.0, {"epochs": 3}), (None, {"epochs": 0})],
    ids=["neither", "both", "no epochs"],
)
def test_either_seconds_or_epochs(seconds, arguments, points, tmp_path):
    with pytest.raises(SearchError, match="epochs"):
        search(tuner_of(tmp_path, seconds=seconds), points, **arguments)


def test_an_unknown_metric_is_refused_with_the_known_ones(points, tmp_path):
    with pytest.raises(SearchError, match=r"val_accuracy, val_loss.*Received: val_f1_accuracy"):
        search(tuner_of(tmp_path, metric="val_f1_accuracy", max_trials=1), points)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda d: tuner_of(d, objective="val_accuracy"), "objective=kbatch.objective"),
        (lambda d: tuner_of(d, distribution_strategy=tf.distribute.get_strategy()), "Mirrored"),
    ],
)
def test_what_cannot_be_compared_fairly_is_refused_by_name(make, text, points, tmp_path):
    with pytest.raises(SearchError, match=text):
        search(make(tmp_path), points)


def test_chief_and_workers_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")
    with pytest.raises(SearchError, match="one process"):
        HyperModel(build, seconds_per_trial=1).declare_hyperparameters(
            keras_tuner.HyperParameters()
        )


@pytest.mark.parametrize("name", ["steps_per_epoch", "initial_epoch", "validation_freq", "workers"])
def test_arguments_of_fit_are_refused_by_name(name, points, tmp_path):
    with pytest.raises(SearchError, match=f"`{name}` must not be passed"):
        search(tuner_of(tmp_path), points, **{name: 3})


def test_a_batch_above_the_number_of_examples_is_refused(points, tmp_path):
    with pytest.raises(DataError, match="1024"):
        search(tuner_of(tmp_path, space=Space(batch_size=(32, 1024))), points)
    assert not Path(tmp_path / "p" / "kbatch" / "records.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"optimizer": keras.optimizers.SGD(1e-9)}, "Received: optimizer="),
        ({"metrics": ["mae"]}, "Received: metrics="),
        ({"loss": "mse"}, "Received: loss="),
    ],
)
def test_a_tuner_that_would_compile_again_is_refused(arguments, text, points, tmp_path):
    hypermodel = HyperModel(build, SPACE, seconds_per_trial=SECONDS)
    tuner = keras_tuner.RandomSearch(
        hypermodel,
        objective=kbatch.objective(),
        max_trials=1,
        directory=tmp_path,
        project_name="p",
        **arguments,
    )
    with pytest.raises(SearchError, match=text):
        search(tuner, points)
    assert not Path(tmp_path / "p" / "kbatch" / "records.jsonl").exists()


def test_all_problems_are_raised_at_once_without_tuner_frames(points, tmp_path):
    tuner = tuner_of(tmp_path, space=Space(batch_size=(32, 1024)), objective="val_accuracy")
    backup = keras.callbacks.BackupAndRestore(tmp_path / "b")
    with pytest.raises(
        SearchError, match=r"(?s)3 problems.*objective.*BackupAndRestore.*1024"
    ) as caught:
        search(tuner, points, callbacks=[backup])
    frames = [str(entry.path) for entry in caught.traceback]
    assert not any("keras_tuner" in path for path in frames)
    assert not Path(tmp_path / "p" / "kbatch" / "records.jsonl").exists()


def test_a_strategys_scope_is_refused(points, tmp_path):
    tuner = tuner_of(tmp_path)
    with (
        tf.distribute.MirroredStrategy(["CPU:0"]).scope(),
        pytest.raises(SearchError, match="scope"),
    ):
        search(tuner, points)


def nothing(hp=None):
    return None


CALLS = {
    "confirm": lambda: kbatch.confirm(None, [0.0]),
    "HyperModel": lambda: kbatch.HyperModel(nothing, space="wide"),
    "Tuner": lambda: kbatch.Tuner(nothing, seconds_per_trial=-1),
    "train": lambda: kbatch.train(kbatch.Recipe(), nothing, [0.0], seconds=-1),
    "retrain": lambda: kbatch.retrain("no folder", nothing, [0.0]),
    "find_max_batch": lambda: kbatch.find_max_batch(nothing, (2,), memory_limit=-1),
    "max_batches": lambda: kbatch.max_batches(nothing, (2,), memory_limit=-1),
    "throughput": lambda: kbatch.throughput(nothing, (2,), memory_limit=-1),
    "noise_scale": lambda: kbatch.noise_scale(nothing, [0.0], updates=-1),
    "advise": lambda: kbatch.advise("no folder"),
    "best_recipe": lambda: kbatch.best_recipe("no folder"),
    "report": lambda: kbatch.report("no folder"),
    "starting_recipe": lambda: kbatch.starting_recipe(nothing, examples=-1),
    "Recipe": lambda: kbatch.Recipe(batch_size=-1),
    "Recipe.from_json": lambda: kbatch.Recipe.from_json("{"),
    "Space": lambda: kbatch.Space(batch_size=-1),
    "ModelSpec": lambda: kbatch.ModelSpec(5),
    "LocalExecutor": lambda: kbatch.LocalExecutor(workers=-1),
    "register_augmentation": lambda: kbatch.register_augmentation("", None),
    "BatchSchedule": lambda: kbatch.callbacks.BatchSchedule("x", 8),
    "estimate": lambda: kbatch.memory.estimate(nothing, (2,)),
    "plan": lambda: kbatch.recompute.plan(None, batch_size=16),
    "load": lambda: kbatch.results.load("no folder"),
}


@pytest.mark.parametrize("name", CALLS)
def test_errors_show_one_line_of_the_users_code(name):
    """Newcomer: `confirm` and constructors showed 6 to 10 frames of kbatch."""
    with pytest.raises(KbatchError) as caught:
        CALLS[name]()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames][-2:] == ["<lambda>", "called"]
