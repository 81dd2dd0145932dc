"""The export of a training: the right recipe, its model and data, and what is not known."""

import ast
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import result_records
from PIL import Image
from typer.testing import CliRunner

from kbatch.cli.app import app
from kbatch.data.case_study import read_images
from kbatch.data.case_study import split as split_of_study
from kbatch.errors import RecordError
from kbatch.records import project as records_project
from kbatch.results.export import code_of
from kbatch.results.ranking import baseline_training, best_training, trial_training
from kbatch.script import fit

RECORDS = [
    result_records.record(-1, 0.2, "baseline", batch_size=32, learning_rate=1e-3),
    result_records.record(0, 0.1, batch_size=64, optimizer="sgd", learning_rate=0.02),
    result_records.record(1, 0.3, batch_size=128, optimizer="sgd", learning_rate=0.03),
]


@pytest.fixture
def project(tmp_path):
    """A search of three trainings, made up."""
    return result_records.keep(tmp_path / "runs", RECORDS)


def know(project, **facts):
    folder = project / "search" / "kbatch"
    records_project.save_facts(folder, {**records_project.load_facts(folder), **facts})


def invoke(*arguments):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def test_each_training_can_be_named(project):
    assert best_training(project).trial == 1
    assert baseline_training(project).baseline
    assert trial_training(project, 0).recipe.learning_rate == 0.02
    for options, rate in (((), 0.03), (("--best",), 0.03), (("--trial", 0), 0.02)):
        done = invoke(project, *options)
        assert done.exit_code == 0
        assert f"SGD(learning_rate={rate}, momentum=0.9)" in done.stdout
    assert "Adam(learning_rate=0.001" in invoke(project, "--baseline").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trial", "7"], "must hold the trial 7. Received: the trials 0, 1."),
        (["--trial", "-1"], "must hold the trial -1"),
        (["--trial", "x"], "must be a whole number"),
        (["--best", "--baseline"], "Received: --best and --baseline"),
        (["--trial", "0", "--baseline"], "Received: --trial 0 and --baseline"),
        (["--force"], "--force must come with --out"),
    ],
)
def test_what_cannot_be_meant_is_refused(project, arguments, words):
    done = invoke(project, *arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.split())


def test_folders_without_a_search_are_refused(tmp_path, project):
    for folder in (tmp_path / "none", tmp_path, project / "search" / "kbatch" / "project.json"):
        assert invoke(folder).exit_code == 2
    empty = result_records.keep(tmp_path / "begun", [RECORDS[0]])
    with pytest.raises(RecordError, match="no trial"):
        best_training(empty)
    assert baseline_training(empty).baseline
    only_failed = [result_records.failed(RECORDS[1])]
    with pytest.raises(RecordError, match="that did not fail"):
        best_training(result_records.keep(tmp_path / "failed", only_failed))


def test_a_file_is_never_lost(project, tmp_path):
    file = tmp_path / "träin é.py"
    assert invoke(project, "--out", file).stdout == f"Written: {file}\n"
    first = file.read_text()
    ast.parse(first)
    file.write_text("mine")
    assert invoke(project, "--out", file).exit_code == 2
    assert file.read_text() == "mine"
    assert invoke(project, "--out", file, "--force").exit_code == 0
    assert file.read_text() == first
    assert invoke(project, "--out", tmp_path, "--force").exit_code == 2
    assert invoke(project, "--out", tmp_path / "no" / "train.py").exit_code == 2


@pytest.mark.parametrize("command", ["export", "compare"])
def test_a_reader_that_leaves_ends_it_as_other_commands(project, command):
    """As with `kbatch export DIR | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    folders = [str(project)] * (2 if command == "compare" else 1)
    words = [sys.executable, "-m", "kbatch", command, *folders]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_what_is_not_known_is_marked(project):
    code = code_of(project, best_training(project))
    assert code.count("TODO") == 3
    ast.parse(code)


def test_loss_metrics_and_epochs_come_from_the_project(project):
    know(
        project,
        signature={"loss": "mse", "metrics": ["mae"]},
        data={"training": {"examples": 6400}, "validation": {"examples": 400}},
    )
    code = code_of(project, best_training(project))
    assert 'loss="mse"' in code
    assert 'metrics=["mae"]' in code
    assert "epochs=5.0" in code  # of 32,000 examples
    know(project, signature={"loss": "Huber 1a2b3c4d", "metrics": ["mae"]})
    assert "TODO: pass the loss and the metrics of the search: Huber 1a2b3c4d" in code_of(
        project, best_training(project)
    )


def test_a_function_of_the_users_is_imported(tmp_path):
    values = {"units": 64, "kind": 'a "b"', "batch_size": 32}
    named = result_records.record(0, 0.3, values=values)
    project = result_records.keep(tmp_path / "runs", [named])
    know(project, model="shop.models:build", class_weight="{0: 2.0}")
    code = code_of(project, named)
    ast.parse(code)
    assert "    from shop.models import build\n" in code
    assert '{"units": 64, "kind": "a \\"b\\""}' in code
    assert "Left out: class_weight={0: 2.0}." in code
    for name in ("no module:at all", "shop:class", ":build", "cnn", "a:b\nimport os"):
        know(project, model=name, image_size="8)\nimport os")
        code = code_of(project, named)
        assert "import os" not in code
        assert 'The trial\'s own hyperparameters: {"units": 64' in code


def test_a_function_may_have_a_name_of_the_code(tmp_path, monkeypatch):
    named = result_records.record(0, 0.3)
    project = result_records.keep(tmp_path / "runs", [named])
    (tmp_path / "train_of_mine.py").write_text("def build_model():\n    return 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    know(project, model="train_of_mine:build_model")
    namespace = {"__name__": "exported"}
    exec(code_of(project, named), namespace)
    assert namespace["build_model"]() == 7


@pytest.mark.parametrize(
    "notes", [b"no json", b"[]", b'{"command": "it\'s"}', b'{"command": 3, "data": [1]}']
)
def test_notes_that_cannot_be_read_are_left_out(project, notes):
    (project / "run.json").write_bytes(notes)
    know(project, model="cnn", image_size=32, signature={"loss": {"a": "mse"}, "metrics": {}})
    code = code_of(project, best_training(project))
    ast.parse(code)
    assert code.count("TODO") == 3


@pytest.mark.parametrize("flag", ["", "--tensorboard "])
@pytest.mark.parametrize(
    ("data", "call"),
    [
        ("drawn", "return split(drawn_pets(1000, 32, seed=3))"),
        ("my photos", 'return split(photographs("my photos", 32, 1000))'),
        ("tfds", "# The search had: 2,000 photographs."),
    ],
)
def test_the_case_study_is_written_out(project, data, call, flag):
    know(project, model="small-resnet", image_size=32)
    command = f"kbatch cats-vs-dogs {flag}--data '{data}' --seed 3 --out x"
    notes = {"command": command, "data": "2,000 photographs"}
    (project / "run.json").write_text(json.dumps(notes))
    code = code_of(project, best_training(project))
    names = {each.name for each in ast.parse(code).body if isinstance(each, ast.FunctionDef)}
    assert {"small_resnet", "_block", "_normed", "build_model", "load_data"} <= names
    assert call in code


def test_photographs_are_read_and_split_as_in_the_search(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("Cat", "Dog"):
        (tmp_path / name).mkdir()
        for number in range(12):
            pixels = rng.integers(0, 256, (20, 30, 3), "uint8")
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    (tmp_path / "Cat" / "3.png").write_bytes(b"no picture")
    (tmp_path / "Dog" / "Thumbs.db").write_bytes(b"none")
    theirs, _ = read_images(tmp_path, 16, 10)
    around = tmp_path.parent
    zipped = shutil.make_archive(str(tmp_path.parent / "pets"), "zip", around, tmp_path.name)
    for source in (tmp_path, zipped):
        ours = fit.photographs(source, 16, 10)
        assert list(ours) == ["Cat", "Dog"]
        for name in ("Cat", "Dog"):
            np.testing.assert_array_equal(ours[name], theirs[name])
    study = split_of_study("", theirs)
    for part, expected in zip(fit.split(ours), (study.train, study.validation), strict=True):
        for array, other in zip(part, expected, strict=True):
            np.testing.assert_array_equal(array, other)


@pytest.mark.slow
def test_the_exported_script_repeats_the_training(tmp_path):
    """In a fresh process, the accuracy after the last update is that of the record."""
    command = [sys.executable, "-m", "kbatch", "cats-vs-dogs", "--image-size", "16"]
    options = "--trials 1 --seconds-per-trial 1 --confirm 0 --model small-resnet --jit off"
    flags = ["--out", str(tmp_path / "pets"), "--policies", "float32"]
    subprocess.run([*command, *options.split(), *flags], check=True, capture_output=True)
    best = best_training(tmp_path / "pets")
    file = tmp_path / "train.py"
    file.write_text(code_of(tmp_path / "pets", best))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    printed = dict(line.split() for line in done.stdout.splitlines()[-4:])
    # two of 400 photographs, for sums in another order
    assert float(printed["val_accuracy"]) == pytest.approx(best.outcome.curve[-1][1], abs=0.0055)


def test_a_compiled_model_keeps_its_own_loss(project):
    know(project, signature={"optimizer": "Adam 1", "loss": "Huber 1a2b3c4d", "metrics": ["mae"]})
    code = code_of(project, best_training(project))
    main = code.split('if __name__ == "__main__":')[1]
    assert "loss=" not in main
    assert "metrics=" not in main
    assert code.count("TODO") == 2  # model and data


def test_a_loss_without_a_name_stops_the_script(project):
    know(project, signature={"loss": "Huber 1a2b3c4d", "metrics": ["mae"]})
    main = code_of(project, best_training(project)).split('if __name__ == "__main__":')[1]
    stop = main.index("raise NotImplementedError(")
    assert "loss and the metrics of the search: Huber 1a2b3c4d" in main[stop:]
    assert stop < main.index("train(")


def test_callbacks_and_class_weights_are_in_the_code(project):
    named = [{"name": name, "settings": {}} for name in ("ReduceLROnPlateau", "Mine")]
    know(project, callbacks=named, class_weight={"0": 1.0, "1": 2.5})
    code = code_of(project, best_training(project))
    assert "callbacks of the search are left out: ReduceLROnPlateau, Mine." in code
    assert "TODO: pass callbacks=, as the search had them: ReduceLROnPlateau, Mine." in code
    assert "class_weight={0: 1.0, 1: 2.5}" in code
    know(project, callbacks=[], class_weight=None)
    assert "callbacks of the search" not in code_of(project, best_training(project))


@pytest.mark.parametrize("values", [{}, {"units": 7}])
def test_own_values_are_passed_to_the_users_function(tmp_path, monkeypatch, values):
    named = result_records.record(0, 0.3, values=values)
    project = result_records.keep(tmp_path / "runs", [named])
    source = "def build(hp):\n    return hp.Int('units', 3, 9)\n"
    (tmp_path / f"of_mine_{len(values)}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    know(project, model=f"of_mine_{len(values)}:build")
    namespace = {"__name__": "exported"}
    exec(code_of(project, named), namespace)
    assert namespace["build_model"]() == values.get("units", 3)
