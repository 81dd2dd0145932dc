"""Scratch: what TensorFlow's CPU kernels of convolutions allocate to work in.

Read in tensorflow/core/kernels/conv_grad_filter_ops.cc and conv_grad_input_ops.h: both gradients of
a convolution write the image's patches out, for as many examples as fill a cache of 30 MB, however
many the batch has. oneDNN's kernels take none that TensorFlow's allocator sees, as measured. What
cuDNN takes on a GPU is chosen as it runs and is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kbatch.runtime import tensorflow_private
from kbatch.runtime.device import cores

CACHE_BYTES = 30 << 20
LEAST_PER_THREAD_BYTES = 256 << 10

FILTER_GRADIENT, INPUT_GRADIENT = "Conv2DBackpropFilter", "Conv2DBackpropInput"


def convolution_bytes(operation: Any) -> float:
    """Bytes that a gradient of a convolution works in on this device; `0` for other operations.

    The two gradients of one convolution are ready at the same time and run side by side, so each
    is counted with the other, unless one waits for it.
    """
    if operation.type not in (FILTER_GRADIENT, INPUT_GRADIENT) or not _are_counted():
        return 0.0
    sides = set(operation.inputs[2].consumers())
    in_turn = any(side in each.control_inputs for each in sides for side in sides)
    return sum(map(_patch_bytes, {operation} if in_turn else sides))


def _are_counted() -> bool:
    """Whether convolutions run by TensorFlow's own CPU kernels."""
    import tensorflow as tf

    return not (tf.config.get_visible_devices("GPU") or tensorflow_private.uses_onednn())


def _patch_bytes(operation: Any) -> float:
    """Bytes of the patches that one gradient of a convolution writes out."""
    if operation.type == FILTER_GRADIENT:
        kernel = operation.outputs[0].shape
    elif operation.type == INPUT_GRADIENT:
        kernel = operation.inputs[1].shape
    else:
        return 0.0
    upstream = operation.inputs[2]
    if not kernel.is_fully_defined() or not upstream.shape[1:3].is_fully_defined():
        return 0.0
    image = upstream.shape[1:3].as_list()
    return patch_bytes(operation.type, kernel.as_list(), image, upstream.dtype.size, cores())


def patch_bytes(
    kind: str, kernel: Sequence[int], image: Sequence[int], item_bytes: int, threads: int
) -> float:
    """Bytes of the patches for a kernel `(height, width, inputs, outputs)` and an output image."""
    pixels = float(np.prod(image))
    patch = float(np.prod(kernel[:3]))
    one = pixels * patch  # elements of the patches of one example
    work = one + pixels * kernel[3] + patch * kernel[3]
    alone = work / threads >= LEAST_PER_THREAD_BYTES / item_bytes
    if kind == INPUT_GRADIENT and alone:
        return one * item_bytes
    return float(np.ceil(CACHE_BYTES / item_bytes / work)) * one * item_bytes
