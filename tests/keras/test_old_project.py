"""Projects of earlier commits go on: stock KerasTuner's of 1784984, kbatch's own of 3c4292c."""

import json
import shutil
from pathlib import Path

import keras
import keras_tuner
import numpy as np
import pytest

import kbatch
import kbatch.errors
from kbatch import Recipe, Space
from kbatch.records.store import key_of
from kbatch.runtime import device_memory

PROJECTS = Path(__file__).parents[1] / "projects"
KEPT = PROJECTS / "commit_1784984"


def build(hp):
    layers = [
        keras.layers.Dense(hp.Choice("units", [4, 8]), "relu"),
        keras.layers.Dense(1, "sigmoid", dtype="float32"),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def data():
    x = np.random.default_rng(0).normal(size=(240, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    return {"x": x[:200], "y": y[:200], "validation_data": (x[200:], y[200:]), "verbose": 0}


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(KEPT, tmp_path / "old")


def tuner(folder, trials, **axes):
    space = Space(**{"policy": "float32", "batch_size": (16, 32), **axes})
    hypermodel = kbatch.HyperModel(build, space, seconds_per_trial=0.3)
    settings = {"objective": kbatch.objective(), "max_trials": trials, "seed": 3}
    return keras_tuner.RandomSearch(
        hypermodel, directory=str(folder.parent), project_name="old", **settings
    )


def test_an_old_project_goes_on_and_trains_nothing_again(folder):
    records = folder / "kbatch" / "records.jsonl"
    before = records.read_text()
    old = tuner(folder, trials=3)
    old.search(**data())
    after = records.read_text()
    assert after.startswith(before)
    assert after.count("\n") == before.count("\n") + 2  # one trial, begun and ended
    assert list(kbatch.results.load(old).trial) == [-1, 0, 1, 2]
    top = 2 if kbatch.results.load(old).score.idxmax() == 3 else 1  # the new trial may lead
    kbatch.confirm(old, **data(), top=top, seeds=1)
    confirmed = kbatch.results.load_confirmations(old)
    assert sorted(confirmed.trial)[:2] == [-1, 0]  # those of before are among them, once
    assert len(confirmed) == len(set(confirmed.trial))


def test_an_old_project_refuses_another_space(folder):
    with pytest.raises(kbatch.errors.ProjectChangedError, match="batch_size"):
        tuner(folder, trials=3, batch_size=(16, 32, 64)).search(**data())


def test_an_old_project_refuses_an_axis_that_came_later(folder):
    with pytest.raises(kbatch.errors.ProjectChangedError, match="label_smoothing"):
        tuner(folder, trials=3, label_smoothing=(0, 0.1)).search(**data())


def test_the_keys_of_old_records_stay():
    assert key_of({}, Recipe(), 0, "baseline") == "8034ce19bf00bf0d"
    assert (
        key_of({"a": 1}, Recipe(64, "sgd", 0.1, recompute="minimal"), 0, "search")
        == "17a2cc66d465120e"
    )


@pytest.fixture
def own(tmp_path):
    """Six trials and a confirmation of `kbatch.Tuner`, as if trained on this machine."""
    folder = shutil.copytree(PROJECTS / "commit_3c4292c", tmp_path / "own")
    facts = folder / "kbatch" / "project.json"
    of_here = json.loads(facts.read_text()) | {"device": device_memory.device_words()}
    facts.write_text(json.dumps(of_here))
    return folder


def own_data():
    x = np.random.default_rng(0).normal(size=(900, 4)).astype("float32")
    noise = np.random.default_rng(1).normal(size=900)
    y = (x[:, 0] + 0.7 * noise > 0).astype("int32")
    return {"x": x[:600], "y": y[:600], "validation_data": (x[600:], y[600:]), "verbose": 0}


def own_tuner(folder, **axes):
    space = Space(**{"policy": "float32", "batch_size": (16, 32, 64), **axes})
    place = {"directory": str(folder.parent), "project_name": folder.name}
    return kbatch.Tuner(build, space, seconds_per_trial=0.6, **place)


@pytest.mark.parametrize("trials", [6, 7])
def test_a_project_of_kbatchs_own_tuner_goes_on(own, trials):
    records = own / "kbatch" / "records.jsonl"
    before = records.read_text()
    tuner = own_tuner(own)
    tuner.search(**own_data(), max_trials=trials)
    assert records.read_text().startswith(before)
    assert sorted(set(kbatch.results.load(tuner).trial)) == list(range(-1, trials))
    trained = kbatch.results.load_confirmations(tuner)
    kbatch.confirm(tuner, **own_data(), top=2, seeds=3)
    again = kbatch.results.load_confirmations(tuner)
    assert len(again) >= len(trained) == 9
    assert len(again) == 9 or trials > 6


def test_a_project_of_kbatchs_own_tuner_refuses_another_space(own):
    with pytest.raises(kbatch.errors.ProjectChangedError, match="batch_size"):
        own_tuner(own, batch_size=(16, 32)).search(**own_data(), max_trials=6)
