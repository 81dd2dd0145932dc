"""Scratch: bytes of a convolution's gradients, against what TensorFlow's allocator hands out."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from kbatch.runtime import scratch, tensorflow_private

KERNELS = ([3, 3, 16, 16], [3, 3, 64, 64], [1, 1, 64, 64])
SIDES = (32, 8, 8)
MEASURED = """
import json, sys, tensorflow as tf
raw = tf.raw_ops
def peak(call):
    call()
    held = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    result = call()
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    return peak - held - result.shape.num_elements() * 4
found = []
for kernel, side in zip(*json.loads(sys.argv[1])):
    x = tf.zeros((32, side, side, kernel[2]))
    dy, weights = tf.zeros((32, side, side, kernel[3])), tf.zeros(kernel)
    shared = dict(strides=[1, 1, 1, 1], padding="SAME", out_backprop=dy)
    found.append([
        peak(lambda: raw.Conv2DBackpropFilter(input=x, filter_sizes=kernel, **shared)),
        peak(lambda: raw.Conv2DBackpropInput(input_sizes=x.shape, filter=weights, **shared)),
    ])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def measured():
    """Bytes of both gradients for each kernel, measured in a process without oneDNN."""
    environment = {
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    command = [sys.executable, "-c", MEASURED, json.dumps([KERNELS, SIDES])]
    said = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return json.loads(said.stdout.splitlines()[-1])


@pytest.mark.parametrize("turn", range(len(KERNELS)), ids=["3x3x16", "3x3x64", "1x1x64"])
def test_patches_take_what_the_allocator_hands_out(measured, turn):
    kinds = (scratch.FILTER_GRADIENT, scratch.INPUT_GRADIENT)
    for kind, found in zip(kinds, measured[turn], strict=True):
        image = [SIDES[turn]] * 2
        told = scratch.patch_bytes(kind, KERNELS[turn], image, 4, threads=2)
        # a chunk may be up to a quarter larger than asked for
        assert told <= found + 4096
        assert found <= 1.25 * told + 4096


def _gradients_of_a_convolution():
    def step(x, kernel):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            loss = tf.reduce_sum(tf.nn.conv2d(x, kernel, 1, "SAME") ** 2)
        return tape.gradient(loss, [x, kernel])

    kernel = tf.TensorSpec((3, 3, 16, 16))
    graph = tf.function(step).get_concrete_function(tf.TensorSpec((61, 8, 8, 16)), kernel).graph
    return graph.get_operations()


@pytest.mark.parametrize("onednn", [True, False])
def test_both_gradients_are_counted_at_once_but_for_onednn(monkeypatch, onednn):
    monkeypatch.setattr(tensorflow_private, "uses_onednn", lambda: onednn)
    told = {
        operation.type: scratch.convolution_bytes(operation)
        for operation in _gradients_of_a_convolution()
    }
    both = told.pop("Conv2DBackpropFilter"), told.pop("Conv2DBackpropInput")
    assert both[0] == both[1]
    assert (both[0] > 0) is not onednn
    assert not any(told.values())
