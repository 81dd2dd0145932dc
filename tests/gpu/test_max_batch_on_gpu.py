"""The largest batch on a GPU.

Run it alone (`pytest -m gpu tests/gpu/test_max_batch_on_gpu.py`): this process must not hold the
card.
"""

import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not os.path.exists("/dev/nvidia0"), reason="no GPU"),
]

CODE = """
import functools, kbatch
def build(hp=None):
    from kbatch.case_study.models import cnn
    return cnn(200)
if __name__ == "__main__":
    recipe = kbatch.Recipe(
        optimizer="sgd", learning_rate=0.01, policy="{policy}", jit_compile={jit}
    )
    found = kbatch.find_max_batch(
        build, (200, 200, 3), recipe=recipe, memory_limit="4GB", loss="binary_crossentropy"
    )
    print(found.batch_size, found.peak_bytes, found.limit_bytes)
"""


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("jit", [False, True])
def test_the_largest_batch_under_a_limit_uses_most_of_it(policy, jit, tmp_path):
    environment = {**os.environ, "KBATCH_CACHE": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", CODE.format(policy=policy, jit=jit)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert said.returncode == 0, said.stderr
    batch_size, peak_bytes, limit_bytes = map(int, said.stdout.split())
    assert batch_size > 16
    assert 0.6 * limit_bytes < peak_bytes <= limit_bytes <= 4 * 10**9


def test_a_process_that_holds_the_card_is_refused(tmp_path):
    code = (
        "import tensorflow as tf, kbatch\ntf.zeros(1)\n"
        "try:\n    kbatch.find_max_batch(lambda: None, (3,), memory_limit='1GB')\n"
        "except kbatch.errors.MemoryLimitError as error:\n    print(error)"
    )
    environment = {**os.environ, "KBATCH_CACHE": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert "The GPU must be free" in said.stdout
