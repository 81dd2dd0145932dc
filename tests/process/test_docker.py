"""What the images install can be installed; `scripts/images.sh` builds them, in minutes."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The Python of each image; TensorFlow's is 3.11.0rc1 (tensorflow/tensorflow issue 82529).
PYTHONS = {"Dockerfile": "3.12", "tensorflow.Dockerfile": "3.11"}


def text_of(name):
    return (ROOT / "examples" / "docker" / name).read_text()


def requirements(name):
    """The words of the one `pip install`, without its options."""
    (command,) = re.findall(r"(?m)^    pip install --no-cache-dir (.*?)( \\)?$", text_of(name))
    return shlex.split(command[0])


def base(name):
    """The image that another one is built on, unless another is named."""
    (image,) = re.findall(r"(?m)^ARG BASE=(.*)\nFROM \$\{BASE\}$", text_of(name))
    return image


@pytest.mark.parametrize("name", PYTHONS)
def test_a_container_installs_the_checkout_and_is_kbatch(name):
    assert "\nRUN --mount=type=bind,target=/src \\\n" in text_of(name)
    assert [word for word in requirements(name) if word.startswith("/src")]
    assert text_of(name).endswith('ENTRYPOINT ["kbatch"]\n')


def test_extras_and_images_are_those_that_the_project_has():
    assert "\ngpu = [" in (ROOT / "pyproject.toml").read_text()
    assert requirements("Dockerfile") == ["/src[gpu]"]
    assert base("Dockerfile") == f"python:{PYTHONS['Dockerfile']}-slim"
    (pinned, *_) = requirements("tensorflow.Dockerfile")
    version = pinned.removeprefix("tensorflow==")
    assert base("tensorflow.Dockerfile") == f"tensorflow/tensorflow:{version}-gpu"


@pytest.mark.slow
@pytest.mark.parametrize("name", PYTHONS)
def test_pip_finds_all_that_a_container_installs(name, tmp_path):
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT], check=True)
    wheel = str(next(tmp_path.glob("*.whl")))
    wanted = [word.replace("/src", wheel) for word in requirements(name)]
    of_image = ["--python-version", PYTHONS[name], "--only-binary=:all:", "--ignore-installed"]
    found = tmp_path / "found.json"
    aims = ["--dry-run", "--target", tmp_path / "target", "--report", found]
    subprocess.run([*pip, "install", "-q", *aims, *of_image, *wanted], check=True, timeout=900)
    installed = [each["metadata"] for each in json.loads(found.read_text())["install"]]
    versions = {each["name"].lower(): each["version"] for each in installed}
    assert {"tensorflow", "keras", "keras-tuner", "nvidia-ml-py", "keras-kbatch"} <= versions.keys()
    for word in wanted:
        library, _, version = word.partition("==")
        assert not version or versions[library] == version
