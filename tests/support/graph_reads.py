"""Reads of a variable that TensorFlow's optimized graph may run after the variable's update."""

import collections

from tensorflow.python.eager import context


def freed(run):
    """Names of reads that the trace orders before an update, and the optimized graph does not.

    Args:
        run: Function that runs the traced function.

    Returns:
        Set of names.
    """
    context.enable_graph_collection()
    try:
        run()
        graphs = context.export_run_metadata().function_graphs
    finally:
        context.disable_graph_collection()
    pairs = [
        (_before(graph.pre_optimization_graph.node), _before(graph.post_optimization_graph.node))
        for graph in graphs
    ]
    assert any(traced for traced, _ in pairs)
    return {
        read
        for traced, optimized in pairs
        for read, update in traced.keys() & optimized.keys()
        if traced[read, update] > optimized[read, update]
    }


def _before(nodes):
    """For each read and update of one variable, whether the one always comes before the other."""
    inputs = {node.name: [name.lstrip("^").split(":")[0] for name in node.input] for node in nodes}
    kinds = {node.name: node.op for node in nodes}
    reads, updates = collections.defaultdict(list), collections.defaultdict(list)
    for name, kind in kinds.items():
        group = (
            reads if kind == "ReadVariableOp" else updates if kind.startswith("Assign") else None
        )
        if group is not None:
            variable = inputs[name][0]
            while kinds[variable] == "Identity":
                variable = inputs[variable][0]
            group[variable].append(name)
    found = {}
    for variable, names in updates.items():
        for update in names:
            earlier, stack = set(), [update]
            while stack:
                new = [name for name in inputs[stack.pop()] if name not in earlier]
                earlier.update(new)
                stack.extend(new)
            found.update({(read, update): read in earlier for read in reads[variable]})
    return found
