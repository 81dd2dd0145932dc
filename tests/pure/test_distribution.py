"""The name by which kbatch is installed, and another project that is imported by the same."""

import importlib.metadata
import re
import warnings
from email.message import Message
from pathlib import Path

import pytest

import kbatch
from kbatch import distribution
from kbatch.cli.doctor import _kbatch

ROOT = Path(__file__).parents[2]


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


def test_version_and_date_are_the_same_everywhere():
    cited = (ROOT / "CITATION.cff").read_text()
    date = re.search(r"(?m)^date-released: (\S+)$", cited)[1].strip('"')
    assert f"\nversion: {kbatch.__version__}\n" in cited
    assert f"\n## {kbatch.__version__} ({date})\n" in (ROOT / "CHANGELOG.md").read_text()


def test_the_sdist_has_what_a_packager_needs():
    text = (ROOT / "pyproject.toml").read_text()
    included = re.search(r"(?s)targets\.sdist\]\ninclude = \[(.*?)\]", text)[1]
    names = set(re.findall(r'"(.*?)"', included))
    assert names >= {"kbatch", "tests", "scripts", "examples", "LICENSE", "CITATION.cff"}
    assert all((ROOT / name).exists() for name in names)


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
