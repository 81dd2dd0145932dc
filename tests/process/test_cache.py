"""The cache of answers: what is kept comes back, and other circumstances have other keys."""

import os
import sys

import pytest

from kbatch.memory import _cache
from kbatch.memory._max_batch import MaxBatch, Table
from kbatch.runtime import device


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KBATCH_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_what_is_kept_comes_back(folder):
    answer = {"batch_size": 64, "words": "ü", "rows": [1, None, 0.5]}
    assert _cache.load("a") is None
    _cache.save("a", answer)
    assert _cache.load("a") == answer
    assert _cache.load("b") is None
    assert [path.name for path in folder.iterdir()] == ["a.json"]  # no half file beside it


@pytest.mark.parametrize("broken", [b"", b'{"batch_size": 6', b"\xff\xfe\x00", b"[" * 100_000])
def test_a_broken_file_counts_as_none_and_is_replaced(folder, broken):
    _cache.save("a", 1)
    (folder / "a.json").write_bytes(broken)
    assert _cache.load("a") is None
    _cache.save("a", 2)
    assert _cache.load("a") == 2


@pytest.mark.parametrize("odd", [lambda path: path.mkdir(), lambda path: os.mkfifo(path)])
def test_what_is_no_file_counts_as_none(folder, odd):
    folder.mkdir()
    odd(folder / "a.json")
    assert _cache.load("a") is None
    _cache.save("a", 1)
    assert not (folder / "a.json.tmp").exists()


def test_a_folder_that_cannot_be_written_is_no_error(folder):
    folder.write_text("a file is in the way")
    _cache.save("a", 1)
    assert _cache.load("a") is None


def test_the_key_depends_on_facts_and_on_settings_of_tensorflow(monkeypatch):
    first = _cache.key({"limit": 1, "digest": "x"})
    assert _cache.key({"digest": "x", "limit": 1}) == first  # in any order
    assert _cache.key({"digest": "x", "limit": 2}) != first
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")  # changes what is printed, not what is needed
    assert _cache.key({"limit": 1, "digest": "x"}) == first
    for name, value in (("TF_ENABLE_ONEDNN_OPTS", "9"), ("XLA_FLAGS", "--xla_dump_to=a")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert _cache.key({"limit": 1, "digest": "x"}) != first


def test_another_processor_is_another_key(monkeypatch):
    before = _cache.key({})
    monkeypatch.setattr(device, "processor_name", lambda: "another")
    assert "another" in _cache.device()
    assert _cache.key({}) != before
    monkeypatch.setattr(device, "processor_name", lambda: None)
    assert "cores" in _cache.device()


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of Linux")
def test_without_a_variable_the_users_cache_folder_is_taken(monkeypatch, tmp_path):
    monkeypatch.delenv("KBATCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _cache.folder() == tmp_path / "kbatch"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert _cache.folder() == tmp_path / "home" / ".cache" / "kbatch"


@pytest.mark.parametrize("kept", [{}, [], "text", 3, {"rows": 5}, {"batch_size": "many"}])
def test_an_answer_of_another_form_counts_as_none(folder, kept):
    _cache.save("a", kept)
    assert _cache.load("a") == kept
    assert _cache.load_as("a", MaxBatch.from_dict) is None
    assert _cache.load_as("a", Table.from_dict) is None
