"""Trace: a traced graph's operations: their kinds, sizes over the batch size, and digest.

The module imports no TensorFlow: a parent process reads what its worker has traced.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kbatch.runtime.tensorflow_private import graph_def_of_function

if TYPE_CHECKING:
    import tensorflow as tf

# Measured peak over predicted peak on a CPU: TensorFlow's allocator hands out chunks that are
# larger than asked for, and its executor holds some tensors longer than the trace's order tells.
# Chosen by hand between the narrow transformers of scripts/bench_models.py, for which 1.03 would
# do, and the larger models of scripts/bench_recompute.py, for which 1.17 would.
ALLOCATOR_SLACK = 1.08


@dataclass(frozen=True)
class Size:
    """Bytes as a line in the batch size: `fixed + per_example * batch_size`."""

    fixed: float = 0.0
    per_example: float = 0.0

    def __add__(self, other: Size) -> Size:
        return Size(self.fixed + other.fixed, self.per_example + other.per_example)

    def times(self, factor: float) -> Size:
        """The line with both numbers multiplied."""
        return Size(self.fixed * factor, self.per_example * factor)

    def at(self, batch_size: int) -> float:
        """Bytes at a batch size."""
        return self.fixed + self.per_example * batch_size


@dataclass(frozen=True)
class Moment:
    """Bytes alive at one moment of the step, not counting the variables."""

    gradients: Size  # of the weights' gradients
    activations: Size  # of everything that grows with the batch
    workspace: Size  # of all other tensors, those inside calls and loops included

    @property
    def total(self) -> Size:
        """Bytes of all parts."""
        return self.gradients + self.activations + self.workspace


PRIME = 61

# A resource is a handle, a variant a handle to a list, and strings lie outside of the buffer.
_NOT_COUNTED = ("resource", "variant", "string")

# cuDNN's recurrent layers, which Keras takes on a GPU, keep the gates and the states of all steps
# in an output of unknown shape (tensorflow/core/ops/cudnn_rnn_ops.cc, TensorFlow 2.21.0). Its size
# is NVIDIA's secret; the gates and two states for each output are an estimate, which probes
# correct.
_RECURRENT = ("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3")
_RESERVED, _STATES = 3, 2
_GATES = {b"lstm": 4, b"gru": 3, b"rnn_relu": 1, b"rnn_tanh": 1}


def size_of(tensor: Any) -> Size:
    """Bytes of a tensor; `0` if its shape is unknown, or if it is a resource, list or string."""
    if tensor.dtype.name in _NOT_COUNTED:
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


# Attributes left out of the digest: names that TensorFlow numbers in each process or takes from the
# code, and hints that carry such names (as of TensorFlow 2.21.0).
UNREAD_ATTRIBUTES = frozenset(
    {
        "_backward_func_name",
        "_class",
        "_forward_func_name",
        "_gradient_op_type",
        "_user_specified_name",
        "container",
        "debug_name",
        "shared_name",
        "token",
    }
)

# Operations that call Python, whose code is not in the graph.
OPAQUE = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})

# The values of a constant count up to this many bytes: shapes, axes and rates are smaller, tables
# of numbers are larger. Chosen by hand.
MOST_DIGESTED_BYTES = 1 << 10


def digest_of(graph: Any) -> str:
    """A digest of a graph's operations, their types, shapes and edges.

    A graph that calls Python gets another digest each time, since no trace shows what it does.
    """
    definition = graph.as_graph_def(add_shapes=True)
    walk = _Walk({function.signature.name: function for function in definition.library.function})
    walk.add(definition.node)
    return walk.hash.hexdigest()


class _Walk:
    """A hash of the operations reached so far.

    Functions are named by the order in which they are met: their own names differ from process to
    process.
    """

    def __init__(self, functions: dict[str, Any]) -> None:
        self.hash = hashlib.sha256()
        self._functions = functions
        self._met: dict[str, int] = {}

    def add(self, nodes: Iterable[Any]) -> None:
        """Add the operations of a graph or of a function."""
        nodes = list(nodes)
        numbers = {node.name: str(number) for number, node in enumerate(nodes)}
        for node in nodes:
            self._update(self._called(node.op) if node.op in self._functions else node.op)
            self._update(*(_edge(edge, numbers) for edge in node.input))
            if node.op in OPAQUE:
                self._update(uuid.uuid4().hex)
            for name in sorted(node.attr):
                if name not in UNREAD_ATTRIBUTES:
                    self._update(name, self._attribute(node.attr[name]))

    def _attribute(self, value: Any) -> str:
        kind = value.WhichOneof("value")
        if kind == "func":
            return self._called(value.func.name)
        if kind == "list" and value.list.func:
            return ",".join(self._called(function.name) for function in value.list.func)
        if kind == "tensor" and value.tensor.ByteSize() > MOST_DIGESTED_BYTES:
            return f"{value.tensor.dtype} {[dim.size for dim in value.tensor.tensor_shape.dim]}"
        return value.SerializeToString(deterministic=True).hex()

    def _called(self, name: str) -> str:
        """The number of a function; its operations are added when it is first met."""
        if name not in self._met:
            self._met[name] = len(self._met)
            if name in self._functions:
                function = self._functions[name]
                arguments = [*function.signature.input_arg, *function.signature.output_arg]
                self._update("function", *(str(argument.type) for argument in arguments))
                self.add(function.node_def)
        return f"function {self._met[name]}"

    def _update(self, *texts: str) -> None:
        for text in texts:
            self.hash.update(f"{len(text)}:{text};".encode())


def _edge(edge: str, numbers: dict[str, str]) -> str:
    """An input edge with the number of its operation in place of the name.

    TensorFlow writes `name:output:0` in a function, and `^name` for a control dependency.
    """
    name, _, output = edge.removeprefix("^").partition(":")
    prefix = "^" if edge.startswith("^") else ""
    return f"{prefix}{numbers.get(name, name)}:{output}"


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


class Reshaped:
    """A graph's operations and outputs, as far as `liveness` asks for them."""

    def __init__(self, graph: tf.Graph, outputs: list[tf.Tensor]) -> None:
        self.outputs = outputs
        self.get_operations = graph.get_operations


def reshaped(concrete: Any, batch_size: int) -> Reshaped | None:
    """The graph of a concrete function with `batch_size` for each `None` in its inputs' shapes.

    TensorFlow infers all other shapes from those of the inputs and variables, in a tenth of the
    time of a trace.

    Returns the graph. `None` if the step calls functions or has loops: their insides would keep
    their unknown shapes.
    """
    import tensorflow as tf

    operations = concrete.graph.get_operations()
    if any(operation.type in CALLS | LOOPS | BRANCHES for operation in operations):
        return None
    definition, names = graph_def_of_function(concrete.function_def)
    _set_shapes(definition, _input_shapes(concrete, batch_size), operations)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(definition, name="")
    results = concrete.function_def.signature.output_arg
    outputs = [names[concrete.function_def.ret[result.name]] for result in results]
    return Reshaped(graph, [graph.get_tensor_by_name(name) for name in outputs])


def _input_shapes(concrete: Any, batch_size: int) -> dict[str, tf.TensorShape]:
    """The shape of each input by its name, with `batch_size` for each `None`."""
    import tensorflow as tf

    arguments = concrete.function_def.signature.input_arg
    return {
        argument.name: tf.TensorShape(
            [batch_size if length is None else length for length in tensor.shape]
        )
        for argument, tensor in zip(arguments, concrete.graph.inputs, strict=True)
    }


def _set_shapes(definition: Any, inputs: dict[str, tf.TensorShape], operations: list[Any]) -> None:
    """Write the shapes of inputs and variables into a graph definition, and remove all others.

    A variable's shape must be written too: the definition has no shape behind a resource handle.
    """
    shapes = {
        operation.name: [tensor.shape for tensor in operation.outputs] for operation in operations
    }
    for node in definition.node:
        node.attr.pop("_output_shapes", None)  # those of any batch size
        if node.name in inputs:
            node.attr["shape"].shape.CopyFrom(inputs[node.name].as_proto())
        if node.op == "ReadVariableOp" and node.name in shapes:
            node.attr["_output_shapes"].list.shape.extend(
                shape.as_proto() for shape in shapes[node.name]
            )
