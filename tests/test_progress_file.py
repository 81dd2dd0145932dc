"""The progress of a training in another process."""

import math

import pytest

from kbatch.training._progress_file import ProgressFile


@pytest.mark.parametrize("value", [0.75, None])
def test_what_is_written_is_read(tmp_path, value):
    own = ProgressFile(tmp_path / "progress", "w+")
    assert own.read() == (0, 0.0, 0.0)
    other = ProgressFile(tmp_path / "progress", "r+")
    other.write(math.pi, value)
    other.write(math.tau, value)
    assert own.read() == (2, math.tau, value)
