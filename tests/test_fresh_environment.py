"""kbatch beside an installed TensorFlow: the wheel changes nothing that is there, and searches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SEARCH = """
import keras, keras_tuner, numpy as np
import kbatch

def build():
    layers = [keras.Input((4,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential(layers)
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model

x = np.random.default_rng(0).normal(size=(200, 4)).astype("float32")
y = (x[:, 0] > 0).astype("int32")
tuner = keras_tuner.RandomSearch(
    kbatch.HyperModel(build, kbatch.Space(batch_size=(16, 32)), seconds_per_trial=0.3),
    objective=kbatch.objective(), max_trials=2, directory="runs", project_name="fresh",
)
tuner.search(x[:150], y[:150], validation_data=(x[150:], y[150:]))
print(list(kbatch.results.load("runs/fresh")["ended"]))
"""


def of(command, folder):
    # without the tests' own paths, so that the installed package is imported
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    of([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT], folder)
    return next(folder.glob("*.whl"))


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.18", "2.21"])
def test_the_wheel_leaves_an_installed_tensorflow_alone(version, wheel, tmp_path):
    of([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [python, "-m", "pip"]
    of([*pip, "install", "-q", "--no-cache-dir", f"tensorflow=={version}.*"], tmp_path)
    before = set(of([*pip, "freeze"], tmp_path).split())
    of([*pip, "install", "-q", "--no-cache-dir", wheel], tmp_path)
    after = set(of([*pip, "freeze"], tmp_path).split())
    assert {line.split("==")[0] for line in before} > {"tensorflow", "keras", "numpy"}
    assert before - after == set()
    assert of([*pip, "check"], tmp_path).startswith("No broken requirements")
    assert of([python.with_name("kbatch"), "--version"], tmp_path).startswith("kbatch ")
    said = of([python, "-c", SEARCH], tmp_path)
    assert said.splitlines()[-1] == "['horizon', 'horizon', 'horizon']"
