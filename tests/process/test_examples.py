"""The examples run, each at the first attempt; two with fewer seconds."""

import runpy
import sys
from pathlib import Path

import forked
import keras
import pytest
from PIL import Image

from kbatch.results.loading import load_records

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, monkeypatch, folder, *arguments):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [name, *arguments, "--out", "runs"])
    return runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_three_lines_move_a_keras_tuner_project_to_kbatch(monkeypatch, tmp_path, capsys):
    run("images_from_keras_tuner.py", monkeypatch, tmp_path, "--trials", "1", "--epochs", "4")
    records = load_records(tmp_path / "runs" / "images")
    assert [record.purpose for record in records] == ["baseline", "search"]
    assert all(record.outcome.ended in ("horizon", "callback") for record in records)
    assert {"units", "dropout"} <= records[1].values.keys()
    board = tmp_path / "runs" / "images-tensorboard"
    assert {path.name for path in board.iterdir() if path.is_dir()} == {"baseline", "0"}
    assert keras.models.load_model(tmp_path / "runs" / "images-best.keras").count_params() > 0
    assert "dropout" in capsys.readouterr().out


def test_text_in_padded_batches_reaches_its_target(monkeypatch, tmp_path, capsys):
    run("text_with_target.py", monkeypatch, tmp_path, "--trials", "1", "--seconds", "3")
    records = load_records(tmp_path / "runs" / "text")
    assert len(records) == 2
    assert all(record.outcome.value is not None for record in records)
    assert "val_auc" in capsys.readouterr().out


def test_tabular_regression_needs_neither_direction_nor_chance(monkeypatch, tmp_path):
    run("tabular_regression.py", monkeypatch, tmp_path, "--trials", "1", "--seconds", "0.5")
    records = load_records(tmp_path / "runs" / "tabular")
    assert [record.outcome.ended for record in records] == ["horizon", "horizon"]
    assert records[1].score > 0 or records[0].score > 0
    said = [any("chance" in remark for remark in record.outcome.remarks) for record in records]
    assert said == [True, False]  # how chance was worked out, once a search


def test_a_model_is_searched_from_the_command_line(monkeypatch, tmp_path):
    for shade, label in enumerate(("ant", "bee", "cow")):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(20):
            picture = Image.new("RGB", (8, 8), (80 * shade, number, 0))
            picture.save(tmp_path / "pictures" / label / f"{number}.png")
    monkeypatch.chdir(EXAMPLES)
    line = "--image-size 32 --trials 1 --seconds-per-trial 0.3 --confirm 0 --batch-sizes 16"
    where = ("--data", tmp_path / "pictures", "--out", tmp_path / "out")
    result = forked.command("search", "pictures_model:build", *where, *line.split())
    assert result.returncode == 0, result.stderr
    assert "dropout" in load_records(tmp_path / "out")[1].values


@pytest.mark.parametrize(
    "name", ["images_from_keras_tuner.py", "text_with_target.py", "tabular_regression.py"]
)
def test_an_example_says_how_it_is_used(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert "--trials" in capsys.readouterr().out


# Scripts without options, and what makes them small.
SMALL = {
    "own_project.py": {
        "seconds_per_trial=3)": "seconds_per_trial=0.5)",
        "max_trials=4,": "max_trials=1,",
        "top=2, seeds=2)": "top=1, seeds=1)",
    },
    "plain_fit.py": {"    3, tf.data": "    0.5, tf.data", "horizon=3,": "horizon=0.5,"},
}


def said(name, monkeypatch, folder, capsys):
    monkeypatch.chdir(folder)
    code = (EXAMPLES / name).read_text()
    for text, smaller in SMALL[name].items():
        assert code.count(text) == 1
        code = code.replace(text, smaller)
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out


def test_the_shortest_project_searches_and_confirms(monkeypatch, tmp_path, capsys):
    printed = said("own_project.py", monkeypatch, tmp_path, capsys)
    purposes = [record.purpose for record in load_records(tmp_path / "runs" / "own")]
    assert purposes == ["baseline", "search", "confirmation", "confirmation"]
    assert "examples_per_second" in printed


def test_the_clock_and_the_horizon_work_in_a_plain_fit(monkeypatch, tmp_path, capsys):
    printed = said("plain_fit.py", monkeypatch, tmp_path, capsys)
    assert int(printed.split(" updates")[0]) > 0
    assert "accuracy held" in printed


def test_every_example_has_a_test():
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    tested = {"images_from_keras_tuner.py", "text_with_target.py", "tabular_regression.py", *SMALL}
    tested.add("pictures_model.py")
    assert scripts == tested
    # tests/process/test_notebook_example.py, tests/process/test_docker.py
    rest = {path.name for path in EXAMPLES.rglob("*") if path.is_file()} - scripts
    assert rest == {"notebook.ipynb", "Dockerfile", "tensorflow.Dockerfile"}
