"""The name by which kbatch is installed, and another project that is imported by the same."""

import importlib.metadata
import re
import warnings
from email.message import Message
from pathlib import Path

import pytest

from kbatch import distribution
from kbatch.cli.doctor import _kbatch

ROOT = Path(__file__).parents[1]


def metadata_of(summary):
    found = Message()
    found["Summary"], found["Version"] = summary, "2023.6.0"
    return lambda name: found


@pytest.fixture
def other(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "metadata", metadata_of("Batch jobs on Kubernetes"))


def test_the_name_is_that_of_the_wheel_and_of_all_pages():
    named = re.search(r'(?m)^name = "(.*)"$', (ROOT / "pyproject.toml").read_text())
    assert named[1] == distribution.NAME
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("kbatch/**/*.py")]:
        text = page.read_text()
        assert "install kbatch" not in text, page
        assert text.count("kbatch[") == text.count("keras-kbatch["), page


def test_the_other_project_is_named(other):
    said = r"kbatch 2023.6.0, another project, .*pip uninstall kbatch"
    with pytest.warns(UserWarning, match=said):
        distribution.warn_of_other()
    assert "another project is installed as kbatch 2023.6.0" in _kbatch().problem


def test_nothing_is_said_without_it(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    for found in (missing, metadata_of("A KerasTuner plugin that searches")):
        monkeypatch.setattr(importlib.metadata, "metadata", found)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            distribution.warn_of_other()
        assert not _kbatch().problem
