"""`kbatch advise`: bullets with reason and source, silence in words, and refusals in a sentence."""

import subprocess
import sys
from pathlib import Path

import pytest
from result_records import keep, record
from typer.testing import CliRunner

from kbatch.cli.app import app

BAD = '{"batch_size": 512, "optimizer": "sgd", "learning_rate": 0.01}'
MODULE = """
import keras

def build(hp=None):
    layers = [keras.Input((4,)), keras.layers.Dense(4), keras.layers.BatchNormalization()]
    return keras.Sequential([*layers, keras.layers.Dense(1)])

def broken(hp=None):
    raise OSError("no weights")
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    Path("advised.py").write_text(MODULE)
    yield
    sys.modules.pop("advised", None)


def run(*arguments):
    return CliRunner().invoke(app, ["advise", *map(str, arguments)])


def test_advice_is_a_bullet_with_reason_and_source():
    result = run("--recipe", BAD)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "recipe: batch 512, sgd 0.01, momentum 0.9"
    assert lines[1].startswith("  • Scale the learning rate with the batch: at batch 512")
    assert lines[2].startswith("    Why: 0.01 is a rate for batch 32.")
    assert lines[3].startswith("    Source: linear rule, Goyal et al. 2017")
    assert "Nothing speaks against it" not in result.stdout


def test_silence_is_said_and_so_is_what_was_not_checked():
    result = run("--recipe", "{}")
    assert result.exit_code == 0
    assert "  Nothing speaks against it." in result.stdout
    assert "Not checked, for lack of evidence: " in result.stdout
    assert "whether a smaller batch is better" in result.stdout
    more = run("--recipe", "{}", "--build", "advised:build", "--examples", "5000", "--epochs", "9")
    assert "updates" in result.stdout
    assert "updates" not in more.stdout
    assert "fine-tuned" not in more.stdout


def test_the_model_the_limit_and_the_devices_are_looked_at():
    split = '{"batch_size": 64, "micro_batch_size": 8}'
    result = run("--recipe", split, "--build", "advised:build", "--max-batch", "64")
    assert "the 1 BatchNormalization layer of the model measures 8 examples" in result.stdout
    assert "Take the batch of 64 in one pass" in result.stdout
    shared = run("--recipe", "{}", "--build", "advised:build", "--devices", "4")
    assert "measures 8 examples" in shared.stdout
    tuned = run("--recipe", '{"batch_size": 128, "learning_rate": 0.002}', "--pretrained")
    assert "Fine-tune with adam at most 0.0001" in tuned.stdout


def test_a_folder_gives_its_best_recipe_and_its_baseline(tmp_path):
    folder = keep(
        tmp_path / "found",
        [record(-1, 0.2, "baseline"), record(0, 0.4, batch_size=64, learning_rate=0.0014)],
    )
    result = run(folder)
    assert result.exit_code == 0, result.stderr
    assert "best recipe (trial 0): batch 64, adam 0.0014" in result.stdout
    assert "baseline: batch 32, adam 0.001" in result.stdout
    assert result.stdout.count("Nothing speaks against it.") == 2


def test_a_recipe_is_judged_by_the_results_of_a_folder(tmp_path):
    folder = keep(
        tmp_path / "found",
        [record(0, 0.4, batch_size=64), record(1, 0.1, batch_size=256, learning_rate=0.0028)],
        examples=2000,
    )
    result = run(folder, "--recipe", '{"batch_size": 256, "learning_rate": 0.0028}')
    assert "Take batch 64 instead of 256, the largest that was tried" in result.stdout


def test_a_real_search_is_advised_on(finished):
    result = run(finished / "p")
    assert result.exit_code == 0, result.stderr
    assert "best recipe (trial " in result.stdout
    assert "validation examples are training examples" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "There must be a recipe to advise on"),
        (["nowhere"], "no such folder"),
        (["--recipe", "batch 32"], "A recipe must be what Recipe.to_json wrote"),
        (["--recipe", '{"batch": 32}'], "only known fields"),
        (["--recipe", '{"batch_size": 0}'], "`batch_size` must be"),
        (["--recipe", "[]"], "must be a dict"),
        (["--recipe", "{}", "--build", "nowhere:build"], "importable"),
        (["--recipe", "{}", "--build", "advised:broken"], "A model must be made"),
        (["--recipe", "{}", "--epochs", "3"], "number of training examples"),
        (["--recipe", "{}", "--epochs", "-1", "--examples", "9"], "above 0"),
        (["--recipe", "{}", "--devices", "0"], "`devices` must be"),
        (["--recipe", "{}", "--max-batch", "1_0"], "whole number"),
    ],
)
def test_nonsense_is_one_sentence_and_exit_code_2(arguments, text):
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("error: ")


def test_help_names_every_option():
    text = run("--help").stdout
    for option in ("recipe", "build", "max-batch", "examples", "epochs", "devices", "pretrained"):
        assert f"--{option}" in text


def test_a_folder_is_advised_on_without_tensorflow(tmp_path):
    folder = keep(tmp_path / "found", [record(0, 0.4, batch_size=64, policy="mixed_float16")])
    code = (
        "import sys; sys.modules['tensorflow'] = None\nfrom kbatch.cli.app import app\n"
        f"app(['advise', {str(folder)!r}, '--recipe', '{{}}'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, "Nothing speaks" in done.stdout) == (0, True), done.stderr
