"""The largest batch on a GPU.

Run it alone (`pytest -m gpu tests/gpu/test_max_batch_on_gpu.py`): this process must not hold the
card.
"""

import os
import subprocess
import sys

import pytest

from kbatch.runtime.nvidia import has_card

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_card(), reason="no GPU"),
]

CODE = """
import functools, kbatch
def build(hp=None):
    from kbatch.models.case_study import cnn
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
# as a user would: the same limit, a fresh process, and 15 % more than the answer
LARGER = """
from kbatch import ModelSpec, Recipe
from kbatch.gpu_checks._survival import survival
from kbatch.memory._workload import Workload
def build(hp=None):
    from kbatch.models.case_study import cnn
    return cnn(200)
if __name__ == "__main__":
    recipe = Recipe(
        optimizer="sgd", learning_rate=0.01, policy="{policy}", jit_compile={jit}
    )
    workload = Workload(ModelSpec(build, loss="binary_crossentropy"), (), recipe)
    lives = survival(workload, 4 * 10**9, {batch_size}, steps=20, processes=1)
    print(lives.answer_trains, lives.larger_fails)
"""


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("jit", [False, True])
def test_the_largest_batch_under_a_limit_uses_most_of_it(policy, jit, tmp_path):
    environment = {**os.environ, "KBATCH_CACHE": str(tmp_path)}
    said = _said(CODE.format(policy=policy, jit=jit), environment)
    batch_size, peak_bytes, limit_bytes = map(int, said.split())
    assert batch_size > 16
    assert 0.6 * limit_bytes < peak_bytes <= limit_bytes <= 4 * 10**9
    # a peak that the first step's tuning has inflated fills the limit too, and the size is too
    # small then: more of it must not train
    said = _said(LARGER.format(policy=policy, jit=jit, batch_size=batch_size), environment)
    assert said.split() == ["True", "True"]


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


def _said(code, environment):
    """What a fresh process prints."""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip().splitlines()[-1]
