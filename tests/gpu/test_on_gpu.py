"""What only a GPU can tell; run with `pytest -m gpu` where there is one."""

import pytest
import tensorflow as tf

import kbatch
from kbatch import Recipe
from kbatch.data.case_study import pictures
from kbatch.models.case_study import cnn
from kbatch.runtime import device_memory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="no GPU"),
]


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_every_policy_trains_on_the_gpu_with_augmentation(policy, jit_compile):
    data = pictures("drawn", image_size=64)
    recipe = Recipe(
        64, "sgd", 0.01, policy=policy, jit_compile=jit_compile, augmentation="flip_shift"
    )
    arguments = {"seconds": 5, "loss": "binary_crossentropy", "metrics": ["accuracy"]}
    _, outcome = kbatch.train(recipe, lambda: cnn(64), *data.train, data.validation, **arguments)
    assert outcome.ended == "horizon"
    assert outcome.value > 0.5
    assert outcome.peak_bytes > 4 * 4_000_000
    assert device_memory.device() == "GPU:0"
