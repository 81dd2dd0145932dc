"""`kbatch tune` on scripts as people write them."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest

SCRIPTS = Path(__file__).parents[1] / "support" / "users_scripts"
SHORT = ["--trials", "1", "--seconds-per-trial", "0.4", "--confirm", "0"]
SAVED = {
    "from_scratch": "model.keras",
    "transfer": "transfer.keras",
    "text": "text.keras",
    "structured": "structured.keras",
    "unet": "unet.keras",
    "vae": "decoder.keras",
    "several_outputs": "several.keras",
    "series": "series.weights.h5",
    "mixed": "mixed.keras",
    "tuner": "tuner.keras",
    "hyperband": "hyperband.keras",
}


def tune(*arguments, cwd, timeout=300):
    command = [sys.executable, "-m", "kbatch", "tune", *map(str, arguments)]
    folder = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": folder, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment
    )


def forked_tune(*arguments, cwd):
    with contextlib.chdir(cwd):
        return forked.command("tune", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAVED)
def test_a_script_ends_in_the_file_that_it_saves(name, tmp_path):
    done = tune("--train", *SHORT, SCRIPTS / f"{name}.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    went_on = "Trained by: " if name != "hyperband" else "AUC 0."  # a trial's own model
    assert went_on in done.stdout
    assert (tmp_path / SAVED[name]).exists()


def test_a_script_gets_its_arguments_and_its_own_lines_back(tmp_path):
    script = SCRIPTS / "from_scratch.py"
    options = [*SHORT, "--optimizers", "sgd", "--batch-sizes", "64"]
    done = forked_tune(*options, script, "--epochs", "3", "--out", "here.keras", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "batch 32, 3 epochs, scored by val_accuracy" in done.stdout
    assert "+BATCH = 64" in done.stdout or "today's is kept" in done.stdout
    assert not (tmp_path / "here.keras").exists()  # the script ends at its fit
    assert (tmp_path / "kbatch-tune" / "from_scratch" / "report.html").exists()


def test_check_trains_nothing(tmp_path):
    done = forked_tune("--check", SCRIPTS / "transfer.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "line 33 is longer, and is taken" in done.stdout
    assert "the weights that the model had, loaded or trained" in done.stdout
    assert os.listdir(tmp_path) == []


def test_what_is_no_script_is_refused_before_tensorflow(tmp_path):
    for arguments in ((), ("nothing.py",), ("--module", "no.such.module")):
        done = tune(*arguments, cwd=tmp_path, timeout=60)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")


def test_a_loop_of_ones_own_gets_one_sentence(tmp_path):
    done = forked_tune(SCRIPTS / "loop.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "GradientTape" in done.stderr.splitlines()[-1]


def test_an_end_of_the_script_itself_is_handed_on(tmp_path):
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(3)\n")
    assert forked_tune("ends.py", cwd=tmp_path).returncode == 3


def test_a_module_is_run_as_python_does(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "train.py").write_text("import sys\nsys.exit(len(sys.argv))\n")
    assert forked_tune("--module", "pkg.train", "a", "--b", cwd=tmp_path).returncode == 3


def test_an_error_of_the_script_is_shown_as_python_shows_it(tmp_path):
    (tmp_path / "broken.py").write_text('x = 1\nopen("missing.csv")\n')
    done = forked_tune("broken.py", cwd=tmp_path)
    assert done.returncode == 1
    shown = done.stderr[done.stderr.index("Traceback") :]
    assert 'line 2, in <module>\n    open("missing.csv")' in shown
    assert "FileNotFoundError" in shown.splitlines()[-1]
    assert "kbatch" not in shown


OLD = """import keras, keras_tuner, numpy as np
def build(hp):
    model = keras.Sequential([keras.layers.Dense(hp.Int('units', 1, 2))])
    model.compile(keras.optimizers.SGD(hp.Choice('learning_rate', [0.1, 0.01])), 'mse')
    return model
x = np.linspace(0.0, 1.0, 128).reshape(64, 2)
tuner = keras_tuner.RandomSearch(build, objective='val_loss', max_trials=9, directory='own')
tuner.search(x, x[:, :1], validation_data=(x, x[:, :1]), verbose=0, batch_size=16)
print('rate', tuner.get_best_hyperparameters()[0].get('learning_rate'))
"""


def patched(folder, said):
    """Change a script as a diff says, and run it by Python alone."""
    text = (folder / "old.py").read_text()
    for hunk in re.split(r"^@@.*@@\n", said[said.index("--- ") :], flags=re.MULTILINE)[1:]:
        lines = [line for line in hunk.splitlines(keepends=True) if line[0] in " -+"]
        before = "".join(line[1:] for line in lines if line[0] != "+")
        assert before in text
        text = text.replace(before, "".join(line[1:] for line in lines if line[0] != "-"))
    (folder / "old.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "old.py"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=folder, env=environment
    )


@pytest.mark.parametrize("epochs", ["", pytest.param(", epochs=1", marks=pytest.mark.slow)])
def test_a_tuner_of_the_script_searches_by_the_score(epochs, tmp_path):
    script = OLD.replace(", batch_size=16)", f", batch_size=16{epochs})")
    (tmp_path / "old.py").write_text(script.replace("max_trials=9", "max_trials=1"))
    done = forked_tune(*SHORT, "old.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "RandomSearch of KerasTuner, batch 16, 1 epochs, scored by val_loss" in done.stdout
    assert "batch 16, compiled" in done.stdout  # today's
    assert "trial 0: " in done.stdout
    assert "rate 0.1" not in done.stdout  # the script ends at its search
    assert not (tmp_path / "own").exists()
    again = forked_tune("--train", *SHORT, "old.py", cwd=tmp_path)  # goes on where it was
    assert "trial 0: " not in again.stdout  # answered from its record
    assert "rate 0." in again.stdout, again.stderr
    changed = patched(tmp_path, done.stdout)
    assert changed.returncode == 0, changed.stderr
    assert "rate 0.1" in changed.stdout
    assert (tmp_path / "own").exists()


def test_a_script_may_go_to_another_folder_and_miss_a_fit(tmp_path):
    (tmp_path / "data").mkdir()
    head = "import os, keras, numpy as np\nos.chdir('data')\nx = np.ones((64, 2))\n"
    model = "m = keras.Sequential([keras.layers.Dense(1)])\nm.compile('sgd', 'mse')\n"
    fit = "m.fit(x, x[:, 0], epochs=1, verbose=0)\nif os.environ.get('FINE'):\n"
    (tmp_path / "two.py").write_text(head + model + fit + "    m.fit(x, x[:, 0], epochs=9)\n")
    done = forked_tune("--check", "two.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "Pass --fit 1" in done.stderr.splitlines()[-1]
    options = [*SHORT, "--fit", "1", "--validation-split", "0.5", "--optimizers", "sgd"]
    done = forked_tune(*options, "two.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kbatch-tune" / "two" / "report.html").exists()
    assert list((tmp_path / "data").iterdir()) == []
