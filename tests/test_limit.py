"""Limits as people write them, and as the environment of a CPU says them."""

import pytest

from kbatch.errors import MemoryLimitError
from kbatch.runtime import device_memory


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
            device_memory.bytes_of(text)
    else:
        assert device_memory.bytes_of(text) == size


@pytest.mark.parametrize("wrong", [0, -1, True, float("inf"), float("nan"), None, "GB", "1.2.3GB"])
def test_nonsense_is_refused(wrong):
    with pytest.raises(MemoryLimitError, match="`memory_limit` must be bytes above 0"):
        device_memory.bytes_of(wrong)


def test_a_cpu_has_a_limit_only_if_both_variables_say_so(monkeypatch):
    monkeypatch.setenv(device_memory.CPU_LIMIT, "300")
    monkeypatch.setenv(device_memory.CPU_BFC, "true")
    assert device_memory.cpu_limit() == 300 << 20
    monkeypatch.setenv(device_memory.CPU_BFC, "false")
    assert device_memory.cpu_limit() is None  # TensorFlow does not mind the limit then
    monkeypatch.setenv(device_memory.CPU_BFC, "1")
    monkeypatch.setenv(device_memory.CPU_LIMIT, "much")
    assert device_memory.cpu_limit() is None


def test_the_environment_of_a_limit():
    assert device_memory.limit_environment(300 << 20) == {
        device_memory.CPU_BFC: "true",
        device_memory.CPU_LIMIT: "300",
    }
    assert device_memory.limit_environment(None) == {device_memory.CPU_BFC: "true"}


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
        device_memory.checked_limit(wrong)


def test_limits_that_this_machine_can_keep_are_taken():
    assert device_memory.checked_limit(None) is None
    assert device_memory.checked_limit("100MB") == 10**8
    assert device_memory.checked_limit(device_memory.most_bytes()) == device_memory.most_bytes()
