"""`kbatch search`: a model and data of the user's own, from the shell."""

import json
import signal
import subprocess
import sys
import time

import forked
import numpy as np
import pytest
from PIL import Image

from kbatch.results.loading import load_goal, load_records

MODELS = """
import keras
from keras import layers


def three(hp):
    rows = [keras.Input((16, 16, 3)), layers.Rescaling(1 / 255), layers.GlobalMaxPooling2D()]
    rows += [layers.Dense(hp.Int("units", 4, 16, step=4), "relu"), layers.Dense(3, "softmax")]
    model = keras.Sequential(rows)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def plain():
    rows = [keras.Input((16, 16, 3)), layers.Flatten(), layers.Dense(3, "softmax")]
    return keras.Sequential(rows)


def two():
    rows = [keras.Input((16, 16, 3)), layers.Flatten(), layers.Dense(2, "softmax")]
    model = keras.Sequential(rows)
    model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    return model


def numbers():
    model = keras.Sequential([keras.Input((5,)), layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def uncompiled_numbers():
    return keras.Sequential([keras.Input((5,)), layers.Dense(1)])


units = 3
"""
SPARSE = "sparse_categorical_crossentropy"
SMALL = ("--trials", "1", "--seconds-per-trial", "0.3", "--confirm", "0")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a module of models, pictures of three classes, and numbers."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "mymodels.py").write_text(MODELS)
    (folder / "badmodels.py").write_text("import nowhere_at_all")
    (folder / "leaving.py").write_text("raise SystemExit(0)")
    rng = np.random.default_rng(0)
    for place, label in enumerate(("ant", "bee [x]", "cow")):
        (folder / "pics" / label).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 100, (16, 16, 3), "uint8")
            pixels[..., place] += 150
            Image.fromarray(pixels).save(folder / "pics" / label / f"{number}.png")
    x = rng.normal(size=(120, 5)).astype("float32")
    few = rng.normal(size=(40, 5))
    np.savez(folder / "few.npz", x=few, y=few[:, 0])
    np.savez(folder / "numbers.npz", x=x, y=x @ np.arange(5.0, dtype="float32"))
    return folder


@pytest.fixture(autouse=True)
def here(project, monkeypatch):
    monkeypatch.chdir(project)


def search(*arguments):
    return forked.command("search", *arguments)


OWN = ("--values", "units=8")
PICTURES = ("mymodels:three", "--data", "pics", "--image-size", "16", *OWN, *SMALL)


@pytest.fixture(scope="module")
def done(project, tmp_path_factory):
    folder = tmp_path_factory.mktemp("done") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        return folder, search(*PICTURES, "--out", folder)


def test_three_classes_are_searched_from_the_shell(done):
    folder, result = done
    assert (result.returncode, result.stderr) == (0, "")
    assert (
        "60 pictures of 3 classes (ant, bee [x], cow) in pics, 16 px: "
        "36 to train, 12 to validate, 12 to test." in result.stdout
    )
    assert "labels as numbers; scored by val_accuracy" in result.stdout
    records = load_records(folder)
    assert [record.purpose for record in records] == ["baseline", "search"]
    assert records[0].values == {"units": 8}
    assert "units" in records[1].values
    assert load_goal(folder).chance == pytest.approx(1 / 3)
    run = json.loads((folder / "run.json").read_text())
    assert run["command"].startswith("kbatch search mymodels:three --data pics --image-size 16 ")
    assert "search mymodels:three" in (folder / "report.md").read_text()


def test_the_command_in_the_report_answers_from_the_records(done):
    folder, _ = done
    before = load_records(folder)
    command = json.loads((folder / "run.json").read_text())["command"].split()
    result = forked.command(*command[1:])
    assert result.returncode == 0, result.stderr
    assert load_records(folder) == before


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("--data", "OTHER"), "classes was ['ant', 'bee [x]', 'cow']"),
        (("--split", "70,15,15"), "split was '60,20,20'"),
        (("--seed", "1"), "seed was 0"),
        (("--image-size", "32"), "image_size was 16"),
        (("--values", "units=4"), "values.units was 8"),
        (("--metric", "loss"), "metric was 'val_accuracy'"),
    ],
)
def test_another_search_in_the_same_folder_is_refused(done, project, tmp_path, change, text):
    folder, _ = done
    for label in ("ant", "bee", "cow"):
        (tmp_path / "other" / label).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(
                tmp_path / "other" / label / f"{number}.png"
            )
    before = load_records(folder)
    change = [str(tmp_path / "other") if part == "OTHER" else part for part in change]
    result = search(*PICTURES, *change, "--out", folder)
    assert (result.returncode, text in result.stderr) == (2, True), result.stderr
    assert load_records(folder) == before


def test_numbers_are_searched_by_their_loss(tmp_path):
    result = search(
        "mymodels:numbers", "--data", "numbers.npz", "--trials", "1", "--confirm", "0",
        "--out", tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "each as long as 5 epochs of the baseline" in result.stdout
    goal = load_goal(tmp_path)
    assert (goal.metric, goal.direction) == ("val_loss", "min")
    assert "labels as they are; scored by val_loss" in result.stdout
    assert all(record.recipe.augmentation == "none" for record in load_records(tmp_path))


@pytest.mark.slow
def test_a_metric_of_an_uncompiled_model_is_measured(tmp_path):
    result = search(
        "mymodels:uncompiled_numbers", "--loss", "mse", "--metric", "mae", "--target", "0.5",
        "--data", "numbers.npz", *SMALL, "--out", tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert (load_goal(tmp_path).metric, load_goal(tmp_path).target) == ("val_mae", 0.5)


@pytest.mark.slow
def test_a_model_of_the_case_study_takes_any_number_of_classes(tmp_path):
    result = search("cnn", "--data", "pics", "--image-size", "16", *SMALL, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Model: cnn" in result.stdout
    assert len(load_records(tmp_path)) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nomodule:build", "--data", "pics"), "The module must be importable from here"),
        (("mymodels:nosuch", "--data", "pics"), "Received: nothing"),
        (("mymodels:units", "--data", "pics"), "Received: int"),
        (("mymodels", "--data", "pics"), "named as module:function"),
        (("badmodels:build", "--data", "pics"), "No module named 'nowhere_at_all'"),
        (("leaving:build", "--data", "pics"), "SystemExit"),
        (("mymodels:plain", "--data", "pics"), "Received: a model that is not compiled"),
        (
            ("mymodels:plain", "--loss", SPARSE, "--data", "pics", "--image-size", "8"),
            "shape of the model's input",
        ),
        (("mymodels:two", "--data", "pics"), "2 outputs and categorical_crossentropy"),
        (("mymodels:three", "--data", "numbers.npz"), "whole numbers for the loss"),
        (("mymodels:numbers", "--data", "few.npz"), "At least 32 examples must be there to train"),
        (("cnn", "--data", "numbers.npz"), "cnn must be given pictures"),
        (("mymodels:three",), "Missing option '--data'"),
        (("--data", "pics"), "Missing argument"),
        (("mymodels:three", "--data", "nowhere"), "that exists"),
        (("mymodels:three", "--data", "tfds:mnistt"), "Did you mean mnist"),
        (("mymodels:three", "--data", "pics", "--split", "50"), "add up to 100"),
        (("mymodels:three", "--data", "pics", "--target", "2"), "target"),
        (("mymodels:three", "--data", "pics", "--values", "units"), "must be name=value"),
        (("mymodels:three", "--data", "pics", "--values", "unit=8"), "declares (units)"),
        (("mymodels:three", "--data", "pics", "--trials", "0"), "--trials must be at least 1"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, text, tmp_path):
    asked = {"numbers.npz", "few.npz", "--image-size"} & set(arguments)
    size = () if asked else ("--image-size", "16")
    result = search(*arguments, *size, "--out", tmp_path / "out")
    assert (result.returncode, text in result.stderr) == (2, True), result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out" / "search" / "kbatch" / "records.jsonl").exists()


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_goes_on(tmp_path):
    arguments = [*PICTURES, "--trials", "2", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "kbatch", "search", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    records = tmp_path / "search" / "kbatch" / "records.jsonl"
    while not (records.exists() and records.read_text().count('"ended", "key"') >= 1):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (130, False), errors
    kept = load_records(tmp_path)
    result = search(*arguments)
    assert result.returncode == 0, result.stderr
    assert load_records(tmp_path)[: len(kept)] == kept
    assert len(load_records(tmp_path)) == 3
