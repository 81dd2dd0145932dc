"""Answers are kept where the user wants them, and found again only under the same facts."""

import sys
from pathlib import Path

import pytest

from kbatch.device import processor
from kbatch.memory import _cache


def test_the_folder_is_the_users_choice(monkeypatch, tmp_path):
    monkeypatch.setenv("KBATCH_CACHE", str(tmp_path / "own"))
    assert _cache.folder() == tmp_path / "own"


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of Linux")
def test_on_linux_the_folder_is_where_it_always_was(monkeypatch, tmp_path):
    monkeypatch.delenv("KBATCH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _cache.folder() == tmp_path / "kbatch"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert _cache.folder() == Path.home() / ".cache" / "kbatch"


def test_an_answer_is_found_again(monkeypatch, tmp_path):
    monkeypatch.setenv("KBATCH_CACHE", str(tmp_path / "new"))
    name = _cache.key({"model": "a"})
    assert _cache.load(name) is None
    _cache.save(name, {"answer": [1, 2.5, None]})
    assert _cache.load(name) == {"answer": [1, 2.5, None]}
    assert _cache.key({"model": "b"}) != name
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".json"]


def test_another_processor_is_another_key(monkeypatch):
    before = _cache.key({})
    monkeypatch.setattr(processor, "name", lambda: "another")
    assert "another" in _cache.device()
    assert _cache.key({}) != before
    monkeypatch.setattr(processor, "name", lambda: None)
    assert "cores" in _cache.device()
