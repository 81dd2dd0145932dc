"""What find_max_batch refuses, each in one sentence, and models that end their process."""

import memory_models
import numpy as np
import pytest

from kbatch import find_max_batch
from kbatch.errors import DataError, MemoryLimitError, ModelError

pytestmark = pytest.mark.usefixtures("own_cache", "forked_workers", "no_worker_is_left")


def test_a_process_that_dies_at_batch_1_is_no_memory_problem():
    with pytest.raises(ModelError, match="one step on one example.*exit code -9"):
        find_max_batch(memory_models.DiesAbove(0), (16,), memory_limit="100MB", ceiling=2)


@pytest.mark.parametrize(
    ("build", "arguments", "kind", "says"),
    [
        (
            memory_models.wide_activations,
            {"x": (1000, 1), "memory_limit": "150MB"},
            MemoryLimitError,
            "One example must fit",
        ),
        (
            memory_models.huge,
            {"x": (16,), "memory_limit": "35MB"},
            MemoryLimitError,
            "memory limit. Received: 35.0 MB, in which they do not",
        ),
        (
            memory_models.raises,
            {"x": (16,), "memory_limit": "100MB"},
            ModelError,
            "ZeroDivisionError: my own bug",
        ),
        (
            memory_models.nothing,
            {"x": (16,), "memory_limit": "100MB"},
            ModelError,
            "must return a keras.Model. Received: NoneType",
        ),
        (memory_models.dies, {"x": (16,), "memory_limit": "100MB"}, ModelError, "exit code 7"),
        (
            memory_models.exits,
            {"x": (16,), "memory_limit": "100MB"},
            ModelError,
            r"exit code 3: sys.exit\(3\)",
        ),
        (
            memory_models.interrupts,
            {"x": (16,), "memory_limit": "100MB"},
            ModelError,
            "KeyboardInterrupt",
        ),
        (
            memory_models.dense,
            {"x": (16,), "memory_limit": "100KB"},
            MemoryLimitError,
            "at least 32 MiB",
        ),
        (
            memory_models.dense,
            {"x": (16,), "memory_limit": "99999999999999GB"},
            MemoryLimitError,
            "at most what this machine has",
        ),
        (
            memory_models.dense,
            {"x": (17,), "memory_limit": "100MB"},
            DataError,
            r"shape of the model's input, \(16,\). Received: \(17,\)",
        ),
        (
            memory_models.uncompiled,
            {"x": (12,), "memory_limit": "100MB"},
            ModelError,
            "must have a loss",
        ),
        (
            memory_models.uncompiled,
            {
                "x": np.zeros((9, 12), "float32"),
                "y": np.zeros((9, 7)),
                "memory_limit": "100MB",
                "loss": "categorical_crossentropy",
            },
            ModelError,
            "must be made and train a step",
        ),
        (memory_models.dense, {"x": (16,)}, MemoryLimitError, "must have a memory limit"),
        (
            memory_models.dense,
            {"x": (16,), "memory_limit": "100MB", "ceiling": 0},
            MemoryLimitError,
            "`ceiling` must be a whole number",
        ),
        (
            memory_models.dense,
            {"x": (16,), "memory_limit": "much"},
            MemoryLimitError,
            "`memory_limit` must be bytes",
        ),
        (
            memory_models.dense,
            {"x": (16,), "memory_limit": -5},
            MemoryLimitError,
            "`memory_limit` must be bytes",
        ),
        (
            memory_models.dense,
            {"x": (0,), "memory_limit": "100MB"},
            DataError,
            "whole numbers of at least 1",
        ),
        (
            memory_models.dense,
            {"x": "16", "memory_limit": "100MB"},
            DataError,
            "Data must be arrays",
        ),
        (
            memory_models.dense,
            {"x": np.zeros((0, 16)), "y": np.zeros(0), "memory_limit": "100MB"},
            DataError,
            "at least 1",
        ),
        ("dense", {"x": (16,), "memory_limit": "100MB"}, ModelError, "`build` must be a function"),
    ],
)
def test_nonsense_is_one_clear_sentence(build, arguments, kind, says):
    with pytest.raises(kind, match=says) as error:
        find_max_batch(build, **arguments)
    assert str(error.value).count("Received: ") == 1


def test_a_probe_that_hangs_is_ended():
    with pytest.raises(ModelError, match="it hung"):
        find_max_batch(memory_models.hangs, (16,), memory_limit="100MB", timeout_seconds=2)
