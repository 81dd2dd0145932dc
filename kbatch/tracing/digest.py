"""Digest of a traced graph: equal in every process that traces the same operations and shapes."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from typing import Any

# Attributes left out of the digest: names that TensorFlow numbers in each process or takes from the
# code, and hints that carry such names (as of TensorFlow 2.21.0).
NAMES = frozenset(
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
UNSEEN = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})

# The values of a constant count up to this many bytes: shapes, axes and rates are smaller, tables
# of numbers are larger. Chosen by hand.
MOST_BYTES = 1 << 10


def digest(graph: Any) -> str:
    """A digest of a graph's operations, their types, shapes and edges.

    A graph that calls Python gets another digest each time, since no trace shows what it does.

    Args:
        graph: `FuncGraph`.
    """
    definition = graph.as_graph_def(add_shapes=True)
    walk = _Walk({function.signature.name: function for function in definition.library.function})
    walk.add(definition.node)
    return walk.hash.hexdigest()


class _Walk:
    """A hash of the operations reached so far.

    Functions are named by the order in which they are met: their own names differ from process to
    process.

    Args:
        functions: Function definitions by their names.
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
            if node.op in UNSEEN:
                self._update(uuid.uuid4().hex)
            for name in sorted(node.attr):
                if name not in NAMES:
                    self._update(name, self._attribute(node.attr[name]))

    def _attribute(self, value: Any) -> str:
        kind = value.WhichOneof("value")
        if kind == "func":
            return self._called(value.func.name)
        if kind == "list" and value.list.func:
            return ",".join(self._called(function.name) for function in value.list.func)
        if kind == "tensor" and value.tensor.ByteSize() > MOST_BYTES:
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
