"""A CPU tells its bytes only where TensorFlow's own allocator counts all of them."""

import forked
import pytest

CODE = """
import tensorflow as tf
from kbatch.device import meter
small = [tf.random.normal((100, 100)) for _ in range(20)]
print(meter.bytes_now())
"""


@pytest.mark.parametrize(
    ("setting", "told"), [("true", True), ("1", True), ("false", False), ("", False)]
)
def test_small_blocks_are_counted_or_nothing_is_said(setting, told, monkeypatch):
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", setting)
    done = forked.code(CODE)
    said = done.stdout.strip()
    assert (int(said) >= 20 * 40_000) if told else said == "None"
