"""Composite: the inside of a layer that does nothing but call others, as a graph of its calls."""

from __future__ import annotations

import inspect
import itertools
import weakref
from typing import Any

import keras
import tensorflow as tf

from kbatch.runtime import keras_private

# by layer: the shape and type of its input, and the graph; `None` for a layer that has none
_known: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()


def inside_of(node: Any) -> Any:
    """Return a Functional model of what a layer does in training; `None` where that is not known.

    The encoder of a vision transformer is such a layer. Its `call` is run once on a symbolic
    tensor. It must have no variables, losses and random numbers besides those of the layers in it,
    since only their calls are seen.
    """
    layer = node.operation
    if not _may_be_unfolded(layer) or len(node.input_tensors) != 1:
        return None
    tensor = node.input_tensors[0]
    if node.arguments.args[0] is not tensor:
        return None
    inner = tuple(id(each) for each in keras_private.flatten_layers(layer))
    kind = (tuple(tensor.shape), str(tensor.dtype), layer.compute_dtype, inner)
    if layer in _known and _known[layer][0] == kind:
        return _known[layer][1]
    graph = _traced(layer, tensor)
    _known[layer] = kind, graph
    return graph


def cast(layer: Any, inputs: Any) -> Any:
    """Return the input of a layer as its `call` gets it."""
    return layer.dtype_policy.convert_input(inputs, layer.autocast, layer.input_dtype)


def _may_be_unfolded(layer: Any) -> bool:
    if not isinstance(layer, keras.layers.Layer) or isinstance(layer, keras.Model):
        return False
    if type(layer).__module__.partition(".")[0] == "keras" or "call" in vars(layer):
        return False
    return (
        layer.built
        and len(keras_private.flatten_layers(layer)) > 2  # itself and two others
        and not keras_private.own_state(layer)
        and layer.activity_regularizer is None
    )


def _traced(layer: Any, tensor: Any) -> Any:
    """The graph of a layer's `call`; `None` if it cannot be run on a symbolic tensor."""
    dtype = tensor.dtype
    if layer.autocast and keras.backend.is_float_dtype(dtype):
        dtype = layer.compute_dtype
    training = {"training": True} if _takes_training(layer) else {}
    losses = set(keras_private.loss_ids(layer))
    try:
        inputs = keras.Input(batch_shape=tensor.shape, dtype=dtype, name=f"{layer.name}_input")
        with keras_private.called_in_training(layer):
            outputs = layer.call(inputs, **training)
        graph = keras.Model(inputs, outputs, name=f"{layer.name}_inside")
    except Exception:  # a `call` in TensorFlow's own functions, or of any other kind
        return None
    if set(keras_private.loss_ids(layer)) != losses:
        keras_private.clear_losses(layer)
        return None
    nodes = itertools.chain(*keras_private.nodes_by_depth(graph).values())
    is_known = all(_can_be_repeated(node) for node in nodes) and _runs(graph, inputs)
    return graph if is_known else None


def _runs(graph: Any, inputs: Any) -> bool:
    """Whether the calls can be run on a tensor.

    They cannot where one was told a size that is open, as `ops.reshape(x, (ops.shape(x)[0], -1))`.
    """
    call = tf.function(lambda tensor: graph(tensor, training=True), autograph=False)
    try:
        with keras.StatelessScope(collect_losses=True):
            call.get_concrete_function(tf.TensorSpec(inputs.shape, inputs.dtype))
    except Exception:  # whatever the operation raises
        return False
    return True


def _can_be_repeated(node: Any) -> bool:
    """Whether a call is the same when its operation is called by itself, in training.

    It is not with values that do not come from the input, such as random ones. Nor if the layer
    says `training` itself, as for a normalization that is frozen: Keras overrules that in a graph.
    `None` is said too: a layer that gets it does as it is told by the default of its `call`.
    """
    leaves = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
    if any(keras.ops.is_tensor(leaf) for leaf in leaves):
        return False
    if not isinstance(node.operation, keras.layers.Layer):
        return True
    said = [leaf for leaf in keras.tree.flatten(node.arguments.args) if isinstance(leaf, bool)]
    trains = node.arguments.kwargs.get("training") or not _takes_training(node.operation)
    return not said and trains


def _takes_training(layer: Any) -> bool:
    return "training" in inspect.signature(layer.call).parameters
