"""Bytes of a traced tensor, as a line in the batch size.

A step is traced with a batch of `PRIME` examples: a dimension that `PRIME` divides counts examples,
any other does not. 61 is chosen by hand: few layers have a dimension that 61 divides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kbatch.tracing.size import Size

PRIME = 61

# A resource is a handle, a variant a handle to a list, and strings lie outside of the buffer.
_NOT_COUNTED = (tf.resource, tf.variant, tf.string)


# cuDNN's recurrent layers, which Keras takes on a GPU, keep the gates and the states of all steps
# in an output of unknown shape (tensorflow/core/ops/cudnn_rnn_ops.cc, TensorFlow 2.21.0). Its size
# is NVIDIA's secret; the gates and two states for each output are an estimate, which probes
# correct.
_RECURRENT = ("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3")
_RESERVED, _STATES = 3, 2
_GATES = {b"lstm": 4, b"gru": 3, b"rnn_relu": 1, b"rnn_tanh": 1}


def size_of(tensor: Any) -> Size:
    """Bytes of a tensor; `0` if its shape is unknown, or if it is a resource, list or string."""
    if tensor.dtype in _NOT_COUNTED:
        return Size()
    if tensor.op.type in _RECURRENT and tensor.value_index == _RESERVED:
        kept = _GATES.get(tensor.op.get_attr("rnn_mode"), 0) + _STATES
        return size_of(tensor.op.outputs[0]).times(kept)
    if not tensor.shape.is_fully_defined():
        return Size()
    return size_of_shape(tensor.shape.as_list(), tensor.dtype.size)


def size_of_shape(shape: Sequence[int], item_bytes: int) -> Size:
    """Bytes of a tensor of a known shape, each element of which takes `item_bytes`."""
    count = float(np.prod(shape, dtype=np.float64)) * item_bytes
    if any(length and length % PRIME == 0 for length in shape):
        return Size(0.0, count / PRIME)
    return Size(count)
