"""Where a command runs: only the user's own code is imported from the folder, and ends are ends."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from result_records import keep, record

LIBRARIES = (
    *("keras_tuner", "h5py", "loky", "PIL", "pynvml", "tensorboard", "optuna", "pandas"),
    *("cupy", "jax", "torch", "ray", "pyarrow", "matplotlib", "pydantic", "xlrd"),
)
COMMAND = str(Path(sys.executable).with_name("kbatch"))
MODEL = """
import keras
import helper

def net(hp=None):
    import lazy
    model = keras.Sequential([keras.Input((4,)), helper.dense(lazy.UNITS)])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a user's module, and files called as libraries that leave a trace."""
    for name in LIBRARIES:
        trace = tmp_path / "ran"
        (tmp_path / f"{name}.py").write_text(f"open({str(trace)!r}, 'a').write('{name} ')\n")
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "helper.py").write_text(
        "import keras\ndef dense(units): return keras.layers.Dense(units, 'softmax')\n"
    )
    (tmp_path / "lazy.py").write_text("UNITS = 3\n")
    return tmp_path


def kbatch(folder, *arguments, **options):
    environment = {**os.environ, "KBATCH_CACHE": str(folder / "cache"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    given = {"capture_output": True, "text": True, "timeout": 300, "env": environment, **options}
    return subprocess.run([COMMAND, *arguments], cwd=folder, **given)


def ran(folder):
    trace = folder / "ran"
    return trace.read_text() if trace.exists() else ""


def test_no_library_is_taken_from_beside_the_users_module(folder):
    limits = ("--memory-limit", "200MB", "--ceiling", "4", "--fresh")
    ended = kbatch(folder, "max-batch", "mine:net", *limits)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("batch 4 ")
    assert ran(folder) == ""


def test_no_library_is_taken_from_beside_the_data(folder):
    for label in ("cat", "dog"):
        (folder / "data" / label).mkdir(parents=True)
        for number in range(40):
            pixels = np.full((8, 8, 3), 6 * number + (label == "dog"), "uint8")
            Image.fromarray(pixels).save(folder / "data" / label / f"{number}.png")
    sizes = ("--image-size", "8", "--trials", "1", "--seconds-per-trial", "0.2", "--confirm", "0")
    ended = kbatch(folder, "search", "cnn", "--data", "data", *sizes, "--out", "out")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert (folder / "out" / "report.md").exists()
    assert ran(folder) == ""


def test_the_users_own_modules_are_found_by_his_own_code_only(folder):
    script = (
        "import os, sys, importlib.util\n"
        "from kbatch.runtime import users_code\n"
        "users_code.use_folder(os.getcwd())\n"
        "assert importlib.util.find_spec('mine') is None\n"
        "users_code.name_module('mine')\n"
        "import mine\n"
        "assert 'helper' in sys.modules and 'lazy' not in sys.modules\n"
        "mine.net()\n"
        "assert users_code.travelling() == (os.getcwd(), ['helper', 'lazy', 'mine'])\n"
        "assert importlib.util.find_spec('xlrd') is None\n"
    )
    call = [sys.executable, "-c", f"import sys; del sys.path[0]\n{script}"]
    ended = subprocess.run(call, cwd=folder, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ran(folder) == ""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--help"], 1), (["doctor"], 141)],
)
def test_a_closed_pipe_ends_without_a_word(arguments, code, folder):
    """Typer prints help itself, and ends with 1."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.Popen(
        [COMMAND, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    process.stdout.close()
    said = process.stderr.read()
    process.wait(120)
    assert "Traceback" not in said
    assert "must not end the command" not in said
    assert "BrokenPipe" not in said
    assert process.returncode == code


NAMES = """
import pathlib
from kbatch.data.pictures import name_of, opened, shown
folder = pathlib.Path("pets")
with opened(folder, 2) as entries:
    for entry in entries:
        print(ascii(entry.name), ascii(shown(entry.parts[0])), len(entry.read()))
        assert folder.joinpath(*map(name_of, entry.parts)).is_file()
"""


@pytest.mark.parametrize("encoding", ["C", "C.UTF-8"])
def test_names_of_classes_are_text_in_every_locale(encoding, tmp_path):
    """Reliability 13: `Kočka` was `Kedb384edb28dka` without a locale of UTF-8."""
    (tmp_path / "pets" / "Kočka").mkdir(parents=True)
    Image.new("L", (2, 2)).save(tmp_path / "pets" / "Kočka" / "1.png")
    plain = {"LC_ALL": encoding, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", NAMES],
        cwd=tmp_path,
        env={**os.environ, **plain},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(r"'Ko\u010dka/1.png' 'Ko\u010dka' ")


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v")
def test_too_little_memory_for_tensorflow_is_one_sentence(folder):
    """Reliability 13: the traceback of an ImportError."""
    few = f"ulimit -v 1000000; exec {COMMAND} search mine:net --data mine:net --trials 1"
    done = subprocess.run(
        ["bash", "-c", few], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "error: TensorFlow must be importable. Received: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&- 2>&-", "<&- >&- 2>&-", "2>&-"])
def test_closed_streams_end_as_the_command_would(closed, tmp_path):
    """Reliability 10: 1 before anything was done, with both streams closed."""
    project = keep(tmp_path, [record(-1, 0.2, "baseline"), record(0, 0.3, batch_size=64)])
    command = f"exec {COMMAND} report {project} {closed}"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0
    assert (project / "report.md").read_text().startswith("#")
