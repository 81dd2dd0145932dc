"""kbatch beside an installed TensorFlow: the wheel changes nothing that is there, and searches."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = re.findall(r"(?s)```python\n(import kbatch.*?)```", (ROOT / "README.md").read_text())[0]
# the corners of what kbatch supports, then what people have in between
ENVIRONMENTS = [
    ("3.10", "2.16"),
    ("3.13", "2.21"),
    ("3.10", "2.21"),
    ("3.12", "2.16"),
    ("3.13", "2.20"),
    ("3.11", "2.17"),
    ("3.12", "2.18"),
    ("3.12", "2.19"),
]


def interpreter(version):
    """A Python of a version: on the path, or among those of pyenv."""
    own = [shutil.which(f"python{version}"), sys.executable]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in [*pyenv.glob(f"{version}.*/bin/python"), *filter(None, own)]:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if said.stdout.startswith(f"Python {version}."):
            return path
    return pytest.skip(f"no Python {version} here")


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
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("python", "tensorflow"), ENVIRONMENTS)
def test_the_wheel_leaves_tensorflow_alone_and_searches(python, tensorflow, wheel, tmp_path):
    of([interpreter(python), "-m", "venv", tmp_path / "venv"], tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [python, "-m", "pip"]
    of([*pip, "install", "-q", "--no-cache-dir", f"tensorflow=={tensorflow}.*"], tmp_path)
    before = set(of([*pip, "freeze"], tmp_path).split())
    of([*pip, "install", "-q", "--no-cache-dir", wheel], tmp_path)
    after = set(of([*pip, "freeze"], tmp_path).split())
    assert {line.split("==")[0] for line in before} > {"tensorflow", "keras", "numpy"}
    assert before - after == set()
    assert of([*pip, "check"], tmp_path).startswith("No broken requirements")
    assert of([python.with_name("kbatch"), "--version"], tmp_path).startswith("kbatch ")
    said = of([python, "-c", SCRIPT], tmp_path)
    assert "baseline -> trial " in said
    assert "13 trainings took " in said
