"""KerasTuner's own files: taken if they are as it writes them, else set aside at once."""

import json
import os

import pytest

from kbatch.cli.search_run import set_aside
from kbatch.records.files import first_broken

HYPERPARAMETERS = {"space": [], "values": {}}
ORACLE = {
    "ongoing_trials": {},
    "hyperparameters": HYPERPARAMETERS,
    "start_order": ["0"],
    "end_order": ["0"],
    "run_times": {"0": 1},
    "retry_queue": [],
    "seed": 1,
    "seed_state": 5,
    "tried_so_far": ["abc"],
    "id_to_hash": {"0": "abc"},
    "display": {"search_start": None, "trial_start": {}, "trial_number": {}},
}
TRIAL = {
    "trial_id": "0",
    "hyperparameters": HYPERPARAMETERS,
    "metrics": {"metrics": {}},
    "score": 0.1,
    "best_step": 0,
    "status": "COMPLETED",
    "message": None,
}
FILES = ("oracle.json", "tuner0.json", "trial_0/trial.json")
SHAPES = ["", "{", "true", "null", "[1]", '"text"', "[" * 100_000, '{"a":' * 100_000]
ODD = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a loop of links": lambda path: path.symlink_to(path.name),
}


@pytest.fixture
def project(tmp_path):
    """The files that KerasTuner writes."""
    (tmp_path / "trial_0").mkdir()
    for name, state in zip(FILES, (ORACLE, {}, TRIAL), strict=True):
        (tmp_path / name).write_text(json.dumps(state))
    return tmp_path


def test_whole_files_are_left_where_they_are(project, tmp_path):
    assert first_broken(project) is None
    assert first_broken(tmp_path / "new") is None


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("text", SHAPES, ids=lambda text: text[:8])
def test_a_file_of_another_shape_is_set_aside(name, text, project):
    (project / name).write_text(text)
    assert first_broken(project) is not None
    aside = set_aside(project)
    assert (aside / name).read_text() == text
    assert first_broken(project) is None


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_file_is_set_aside(name, odd, project):
    (project / name).unlink()
    ODD[odd](project / name)
    assert first_broken(project) is not None
    assert os.path.lexists(set_aside(project) / name)
    assert first_broken(project) is None


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("oracle.json", {"start_order": [0]}),
        ("oracle.json", {"start_order": []}),
        ("oracle.json", {"seed": "1"}),
        ("oracle.json", {"ongoing_trials": None}),
        ("oracle.json", {"gained": 5}),
        ("oracle.json", {"rungs": 5}),
        ("oracle.json", {"varied": [5]}),
        ("trial_0/trial.json", {"trial_id": 0}),
        ("trial_0/trial.json", {"trial_id": "1"}),
        ("trial_0/trial.json", {"score": "0.1"}),
        ("trial_0/trial.json", {"metrics": []}),
    ],
)
def test_a_value_of_another_kind_is_seen(name, change, project):
    state = json.loads((project / name).read_text())
    (project / name).write_text(json.dumps({**state, **change}))
    assert first_broken(project) in (project / "oracle.json", project / "trial_0/trial.json")


def test_two_at_once_do_not_come_into_one_folder(project):
    first = set_aside(project)
    (project / "oracle.json").write_text("{}")
    assert set_aside(project) != first
