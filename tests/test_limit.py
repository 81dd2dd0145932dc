"""Limits as people write them, and as the environment of a CPU says them."""

import pytest

from kbatch.errors import MemoryLimitError
from kbatch.runtime import memory_limit


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8 * 10**9),
        ("900 MB", 9 * 10**8),
        ("1.5GiB", 1610612736),
        ("512mib", 512 << 20),
        (10**9, 10**9),
        ("1e9", None),
        ("4 k", None),
        ("", None),
    ],
)
def test_bytes_of(text, size):
    if size is None:
        with pytest.raises(MemoryLimitError, match="Received"):
            memory_limit.bytes_of(text)
    else:
        assert memory_limit.bytes_of(text) == size


@pytest.mark.parametrize("wrong", [0, -1, True, float("inf"), float("nan"), None, "GB", "1.2.3GB"])
def test_nonsense_is_refused(wrong):
    with pytest.raises(MemoryLimitError, match="`memory_limit` must be bytes above 0"):
        memory_limit.bytes_of(wrong)


def test_a_cpu_has_a_limit_only_if_both_variables_say_so(monkeypatch):
    monkeypatch.setenv(memory_limit.CPU_LIMIT, "300")
    monkeypatch.setenv(memory_limit.CPU_BFC, "true")
    assert memory_limit.cpu_limit() == 300 << 20
    monkeypatch.setenv(memory_limit.CPU_BFC, "false")
    assert memory_limit.cpu_limit() is None  # TensorFlow does not mind the limit then
    monkeypatch.setenv(memory_limit.CPU_BFC, "1")
    monkeypatch.setenv(memory_limit.CPU_LIMIT, "much")
    assert memory_limit.cpu_limit() is None


def test_the_environment_of_a_limit():
    assert memory_limit.limit_environment(300 << 20) == {
        memory_limit.CPU_BFC: "true",
        memory_limit.CPU_LIMIT: "300",
    }
    assert memory_limit.limit_environment(None) == {memory_limit.CPU_BFC: "true"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("100KB", "at least 32 MiB"),
        ("1 MB", "at least 32 MiB"),
        ("99999999999999GB", "at most what this machine has"),
    ],
)
def test_a_limit_too_small_for_any_trial_is_refused(wrong, says):
    with pytest.raises(MemoryLimitError, match=f"`memory_limit` must be {says}"):
        memory_limit.checked_limit(wrong)


def test_limits_that_this_machine_can_keep_are_taken():
    assert memory_limit.checked_limit(None) is None
    assert memory_limit.checked_limit("100MB") == 10**8
    assert memory_limit.checked_limit(memory_limit.most_bytes()) == memory_limit.most_bytes()
