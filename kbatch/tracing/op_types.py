"""Operation types of TensorFlow that share buffers, or that run graphs of their own.

The lists describe the kernels of TensorFlow 2.21.0, on the CPU. A kernel that is missing here is
taken to allocate its outputs, which predicts too many bytes, never too few.
"""

from __future__ import annotations

# The output is the input's buffer: the kernel passes its input on with `set_output`. Read in
# tensorflow/core/kernels/identity_op.h, identity_n_op.h, reshape_op.h and shape_ops.h, in the
# include folder of the wheel. The other kernels have no header there and were not re-read.
ALIASES = frozenset(
    {
        "Bitcast",
        "CheckNumerics",
        "EnsureShape",
        "ExpandDims",
        "Identity",
        "IdentityN",
        "PreventGradient",
        "Reshape",
        "Snapshot",
        "Squeeze",
        "StopGradient",
    }
)

# The kernel writes into an input of the same size that nobody else needs any more: it asks for its
# output with `forward_input_or_allocate_output`. Read in tensorflow/core/kernels/cwise_ops_common.h
# (unary and binary operations) and tensorflow/core/framework/numeric_op.h (activations and their
# gradients), in the include folder of the wheel. AddN, BiasAdd, ClipByValue, SelectV2 and Softmax
# have no header there and were not re-read. `Cast` (cast_op.cc, read at commit 010f3ed) passes
# its input on between equal types and otherwise allocates.
IN_PLACE = frozenset(
    {
        "Add",
        "AddN",
        "AddV2",
        "BiasAdd",
        "Cast",
        "ClipByValue",
        "Elu",
        "EluGrad",
        "Exp",
        "Maximum",
        "Minimum",
        "Mul",
        "Neg",
        "RealDiv",
        "Relu",
        "Relu6",
        "Relu6Grad",
        "ReluGrad",
        "Rsqrt",
        "RsqrtGrad",
        "SelectV2",
        "Selu",
        "Sigmoid",
        "SigmoidGrad",
        "Softmax",
        "Sqrt",
        "Square",
        "Sub",
        "Tanh",
        "TanhGrad",
    }
)

# Only the shape of the input is read, as soon as the input exists: no buffer is kept for them
# (tensorflow/core/kernels/shape_ops.h).
SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size"})

# The output is the list that came in, with one element written, added or removed
# (tensorflow/core/kernels/list_kernels.h).
LISTS = frozenset({"TensorListPopBack", "TensorListPushBack", "TensorListSetItem"})

# Operations that run graphs of their own.
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
LOOPS = frozenset({"StatelessWhile", "While"})
BRANCHES = frozenset({"If", "StatelessIf"})

# Values that belong to the caller or to a variable, and are counted there.
GIVEN = frozenset({"Placeholder", "ReadVariableOp"})

# A variable gets another value (tensorflow/core/kernels/resource_variable_ops.cc): a buffer that a
# reader still needs is left to the reader.
ASSIGNMENTS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})
