"""The model of TensorFlow's allocator: its rules, and the real one beside it."""

import forked
import pytest

from kbatch.runtime.device_memory import Allocator, contiguous

MIB = 1 << 20


def test_what_is_freed_can_be_allocated_again_as_one():
    allocator = Allocator(64 * MIB, first_region=64 * MIB)
    chunks = [allocator.allocate(16 * MIB) for _ in range(4)]
    assert allocator.allocate(1) is None
    for chunk in chunks:
        allocator.free(chunk)
    assert allocator.largest() == 64 * MIB
    assert allocator.allocate(64 * MIB) is not None


def test_regions_double_and_are_not_joined():
    allocator = Allocator(100 * MIB)
    for _ in range(3):
        allocator.allocate(2 * MIB)  # regions of 2, 4 MiB
    assert allocator.largest() == 94 * MIB
    assert allocator.allocate(94 * MIB) is not None
    assert allocator.allocate(MIB // 4) is None


def test_a_chunk_is_split_only_if_it_is_twice_as_large():
    allocator = Allocator(32 * MIB, first_region=32 * MIB)
    allocator.allocate(17 * MIB)
    assert allocator.largest() == 0
    allocator = Allocator(32 * MIB, first_region=32 * MIB)
    allocator.allocate(16 * MIB)
    assert allocator.largest() == 16 * MIB


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([(1 << 20, False)] * 6, marks=pytest.mark.slow),
        [(30 << 20, True), (1 << 20, False), (30 << 20, False), (30 << 20, False)],
        [(1 << 20, True), (128 << 10, True), (2 << 20, True), *[(1 << 20, False)] * 6],
        pytest.param([(164_000_000 // 4 // 512 * 512, True)], marks=pytest.mark.slow),
    ],
)
def test_the_real_allocator_agrees_to_a_percent(sizes, monkeypatch):
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "true")
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "400")
    limit = 400 * MIB
    predicted = contiguous(limit, sizes)
    code = f"""
import keras
import tensorflow as tf
held = []
for size, drawn in {sizes}:
    held.append(keras.Variable("glorot_uniform" if drawn else "zeros", shape=(size // 512, 128)))
one = tf.raw_ops.Empty(shape=[int({predicted} * 0.99)], dtype=tf.uint8, init=False)
del one
try:
    tf.raw_ops.Empty(shape=[int({predicted} * 1.01) + {MIB}], dtype=tf.uint8, init=False)
    print("too much fitted")
except tf.errors.ResourceExhaustedError:
    print("agrees")
"""
    assert forked.code(code).stdout == "agrees\n"
