"""Digest: one text for a traced graph, the same in every process that traces the same operations on the same shapes."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from typing import Any

# Names that TensorFlow counts up in each process or takes from the code, and hints that carry them.
NAMES = frozenset(
    (
        "_gradient_op_type",
        "_class",
        "shared_name",
        "container",
        "token",
        "_forward_func_name",
        "_backward_func_name",
        "debug_name",
        "_user_specified_name",
    )
)
# what their Python does is in no graph
UNSEEN = frozenset(("PyFunc", "PyFuncStateless", "EagerPyFunc"))
# of a constant whose values count: shapes, axes and rates are smaller, tables of numbers larger
MOST_BYTES = 1 << 10


def digest(graph: Any) -> str:
    """A digest of a graph's operations, their types, shapes and edges; another one each time if it calls Python that no trace shows.

    Args:
        graph: `FuncGraph`.
    """
    definition = graph.as_graph_def(add_shapes=True)
    walk = _Walk({function.signature.name: function for function in definition.library.function})
    walk.nodes(definition.node)
    return walk.hash.hexdigest()


class _Walk:
    """What was reached so far: functions are told by the order in which they are met, not by name."""

    def __init__(self, functions: dict[str, Any]) -> None:
        self.hash = hashlib.sha256()
        self._functions = functions
        self._met: dict[str, int] = {}

    def nodes(self, nodes: Iterable[Any]) -> None:
        nodes = list(nodes)
        numbers = {node.name: str(number) for number, node in enumerate(nodes)}
        for node in nodes:
            self._note(self._operation(node.op))
            self._note(*(_edge(edge, numbers) for edge in node.input))
            if node.op in UNSEEN:
                self._note(uuid.uuid4().hex)
            for name in sorted(node.attr):
                if name not in NAMES:
                    self._note(name, self._attribute(node.attr[name]))

    def _attribute(self, value: Any) -> str:
        kind = value.WhichOneof("value")
        if kind == "func":
            return self._called(value.func.name)
        if kind == "list" and value.list.func:
            return ",".join(self._called(function.name) for function in value.list.func)
        if kind == "tensor" and value.tensor.ByteSize() > MOST_BYTES:
            return f"{value.tensor.dtype} {[dim.size for dim in value.tensor.tensor_shape.dim]}"
        return value.SerializeToString(deterministic=True).hex()

    def _operation(self, name: str) -> str:
        return self._called(name) if name in self._functions else name

    def _called(self, name: str) -> str:
        """The number of a function; its own operations are walked when it is first met."""
        if name not in self._met:
            self._met[name] = len(self._met)
            if name in self._functions:
                function = self._functions[name]
                self._note(
                    "function",
                    *(
                        str(argument.type)
                        for argument in (
                            *function.signature.input_arg,
                            *function.signature.output_arg,
                        )
                    ),
                )
                self.nodes(function.node_def)
        return f"function {self._met[name]}"

    def _note(self, *texts: str) -> None:
        for text in texts:
            self.hash.update(f"{len(text)}:{text};".encode())


def _edge(edge: str, numbers: dict[str, str]) -> str:
    """An input by the number of the operation that makes it; `name:output:0` in a function, `^name` for order alone."""
    name, _, output = edge.removeprefix("^").partition(":")
    return f"{'^' if edge.startswith('^') else ''}{numbers.get(name, name)}:{output}"
