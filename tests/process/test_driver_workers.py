"""`--executor` and `--workers`: recipes of a search from the shell, trained at once."""

import forked
import numpy as np
import pytest

from kbatch import ModelSpec, Space
from kbatch.cli.search_options import CaseOptions
from kbatch.cli.search_run import SearchRun
from kbatch.cli.task import Searched
from kbatch.results.loading import load_records
from kbatch.runtime import device

MODEL = """
import os

import keras


def numbers(hp):
    with open("processes.txt", "a") as file:
        print(os.getpid(), file=file)
    units = hp.Int("units", 4, 16, step=4, default=8)
    rows = [keras.Input((5,)), keras.layers.Dense(units, "relu")]
    model = keras.Sequential([*rows, keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model
"""
SMALL = ("--trials", "3", "--seconds-per-trial", "0.3", "--confirm", "0")
OWN = ("my_numbers:numbers", "--data", "numbers.npz", *SMALL)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a module of a model, and numbers."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "my_numbers.py").write_text(MODEL)
    x = np.random.default_rng(0).normal(size=(300, 5)).astype("float32")
    np.savez(folder / "numbers.npz", x=x, y=(x.sum(axis=1) > 0).astype("float32"))
    return folder


@pytest.fixture(scope="module")
def done(project, tmp_path_factory):
    folder = tmp_path_factory.mktemp("done") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        return folder, forked.command("search", *OWN, "--workers", "2", "--out", folder)


@pytest.mark.slow
def test_a_model_of_the_users_own_trains_in_two_workers(done, project):
    folder, result = done
    assert result.returncode == 0
    assert not [line for line in result.stderr.splitlines() if "of the CPU's cores" not in line]
    records = load_records(folder)
    assert sorted(record.purpose for record in records) == ["baseline", *["search"] * 3]
    processes = set((project / "processes.txt").read_text().split())
    assert len(processes) == 1 + 2  # this one builds a model for its checks
    assert "--workers 2" in (folder / "report.md").read_text()


@pytest.mark.slow
def test_the_same_search_goes_on_without_workers(done, project, monkeypatch):
    monkeypatch.chdir(project)
    folder, _ = done
    before = load_records(folder)
    result = forked.command("search", *OWN, "--out", folder)
    assert result.returncode == 0, result.stderr
    assert load_records(folder) == before


def test_the_hypermodel_is_told_how_many(monkeypatch):
    monkeypatch.setattr(device, "leave_gpus_to_workers", lambda: None)
    fields = {**dict.fromkeys(CaseOptions.__dataclass_fields__), "seconds_per_trial": 1.0}
    spec = ModelSpec(lambda: None, loss="mse", metrics=["accuracy"])
    searched = Searched(spec, None)
    for given, workers in (({"workers": 3}, 3), ({"executor": "local"}, 1), ({}, 1)):
        options = CaseOptions(**{**fields, "isolated": False, **given})
        run = SearchRun(options, None, Space(), None, None)
        hypermodel = run.hypermodel(searched, None)
        assert hypermodel.terms.workers == workers
        assert (hypermodel.terms.executor is None) == (not given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--workers", "0"), "--workers must be at least 1"),
        (("--workers", "1.5"), "must be a whole number"),
        (("--executor", "cloud"), "'cloud' is not one of"),
        (
            ("--workers", "2", "--tuner", "random"),
            "need kbatch's own tuner. received: --tuner random",
        ),
        (("--executor", "local", "--tuner", "grid"), "pass --isolated instead"),
    ],
)
def test_what_cannot_be_is_refused(given, text, tmp_path):
    result = forked.command("cats-vs-dogs", *given, "--out", tmp_path / "out")
    assert result.returncode == 2
    assert text.lower() in " ".join(result.stderr.lower().replace("│", " ").split())
    assert not (tmp_path / "out").exists()
